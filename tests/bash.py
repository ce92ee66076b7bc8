"""Real bash beside the reader: a script is run with a launcher that only writes down its words."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from megatron_memory_estimator import ConfigError
from megatron_memory_estimator.inputs.shell.doubts import bare, in_doubt, vanishes
from megatron_memory_estimator.inputs.shell.script import read_script

HARMLESS = ("bash", "cat", "seq", "expr", "basename", "true", "false")
"""The only programs that such a script finds."""

EMPTY = ("error token is", "integer expression expected")
"""What bash says of a command that it gives up because a value that the reader does not know is empty or 0."""


@dataclass
class Bash:
    """A folder with the launcher and the few programs that scripts may run; outcomes are counted."""

    folder: Path
    outcomes: Counter[str] = field(default_factory=Counter)
    complaints: str = ""
    """What bash said of the script that it ran last."""

    def __post_init__(self) -> None:
        programs = self.folder / "bin"
        programs.mkdir()
        (self.folder / "work").mkdir()
        for name in HARMLESS:
            found = shutil.which(name)
            assert found is not None, name
            os.symlink(found, programs / name)
        for name in ("f", "g", "unknown"):
            self._program(name, "#!/bin/sh\n")
        written = self.folder / "words"
        self._program(
            "torchrun",
            f'#!/bin/sh\nfor a in "$@"; do printf "%s\\0" "$a"; done >> {written}\nprintf "\\001\\0" >> {written}\n',
        )

    def _program(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def launches(self, script: str) -> list[list[str]] | None:
        """The words behind the entry of every launch; None where the script does not come to its end."""
        (self.folder / "run.sh").write_text(script)
        (self.folder / "words").unlink(missing_ok=True)
        try:
            ran = subprocess.run(
                ["bash", str(self.folder / "run.sh")],
                cwd=self.folder / "work",
                env={"PATH": str(self.folder / "bin")},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=5,
            )
        except subprocess.TimeoutExpired:
            return None
        self.complaints = ran.stderr.decode("utf-8", "replace")
        if not (self.folder / "words").exists():
            return []
        launches = (self.folder / "words").read_bytes().decode("utf-8", "replace").split("\1\0")[:-1]
        words = [one.split("\0")[:-1] for one in launches]
        return [one[next(at for at, word in enumerate(one) if word.endswith(".py")) + 1 :] for one in words]

    def compare(self, script: str) -> str:
        """same, refused, doubt (something that the reader says it does not know), no launch, endless; said (a note) or different."""
        found = self._compared(script)
        self.outcomes[found] += 1
        return found

    def _compared(self, script: str) -> str:
        launches = self.launches(script)
        if launches is None:
            return "endless"
        try:
            launch = read_script(script)
        except ConfigError:
            return "refused" if launches else "no launch"
        words = [word for word in launch.words if not vanishes(word)]
        if any(in_doubt(word) for word in words):
            return "doubt"
        if launches and [bare(word) for word in words] == launches[-1]:
            return "same"
        if any(note.endswith("the script ends here (exit)") for note in launch.notes):
            return "doubt" if launches else "no launch"  # the reader goes on where it may end, and says so
        if launch.doubts and any(complaint in self.complaints for complaint in EMPTY):
            return "doubt"
        return "said" if launch.notes else "different"
