"""Real bash beside the reader: a script is run with a launcher that only writes down its words."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from megatron_memory_estimator import ConfigError
from megatron_memory_estimator.inputs.shell.script import Beside, read_script
from megatron_memory_estimator.inputs.shell.values import Value, bare, in_doubt, vanishes

HARMLESS = (
    "bash", "sh", "cat", "seq", "cut", "wc", "head", "tail", "expr", "basename", "dirname", "true", "false", "env", "sed", "mv", "cp", "tr",
    "xargs", "tee", "nohup", "date",
)  # fmt: skip
"""The only programs that such a script finds, beside the launcher and a few that do nothing."""
BESIDE = {
    "conf/one.sh": 'A=${A:-9}; R+=(from "${BASH_SOURCE[0]##*/}"); return 3; A=never\n',
    "conf/two.sh": 'f() { B=$1; }; C=$#\n. "$(dirname "${BASH_SOURCE[0]}")/one.sh"\nD=${0##*/}\n',
    "conf/run.sh": 'torchrun train.py inner "$@" "${0##*/}"\n',
}
"""Files beside the script that it may source or start."""
EMPTY = ("error token is", "integer expression expected")
"""What bash says of a command that it gives up because a value that the reader does not know is empty or 0."""
OF_SHELLS = frozenset({"PATH", "PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE"})
"""Variables that every shell sets."""
WRAPPERS = ("srun", "mpirun", "numactl", "timeout")


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
        (self.folder / "conf").mkdir()
        for name, text in BESIDE.items():
            (self.folder / name).write_text(text)
        for name in HARMLESS:
            found = shutil.which(name)
            assert found is not None, name
            os.symlink(found, programs / name)
        for name in ("f", "g", "unknown"):
            self._program(name, "#!/bin/sh\n")
        self._program("two", "#!/bin/sh\necho x y\n")
        for name in WRAPPERS:
            self._program(
                name, '#!/bin/sh\nwhile [ $# -gt 0 ]; do case $1 in torchrun|env|bash) exec "$@";; esac; shift; done\n'
            )
        file = self.folder / "words"
        words = f'for a in "$@"; do printf "%s\\0" "$a"; done >> {file}\nprintf "\\002\\0" >> {file}\n'
        self._program("torchrun", f'#!/bin/sh\n{words}env -0 >> {file}\nprintf "\\001\\0" >> {file}\n')

    def _program(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def launches(self, script: str, words: Sequence[str] = ()) -> list[tuple[list[str], dict[str, str]]] | None:
        """(words behind the entry, environment) of every launch; None where the script does not come to its end."""
        (self.folder / "run.sh").write_text(script)
        (self.folder / "words").unlink(missing_ok=True)
        for left in (self.folder / "work").iterdir():
            left.unlink()
        command = ["bash", "-c", 'ulimit -v 1000000 -t 4; exec bash "$0" "$@"', str(self.folder / "run.sh"), *words]
        ran = subprocess.Popen(
            command,
            cwd=self.folder / "work",
            env={"PATH": str(self.folder / "bin")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            _, complaints = ran.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            os.killpg(ran.pid, signal.SIGKILL)  # with all that it started
            ran.communicate()
            return None
        self.complaints = complaints.decode("utf-8", "replace")
        if not (self.folder / "words").exists():
            return []
        found = []
        for one in (self.folder / "words").read_bytes().decode("utf-8", "replace").split("\1\0")[:-1]:
            words, _, env = one.partition("\2\0")
            listed = words.split("\0")[:-1]
            entry = next(at for at, word in enumerate(listed) if word.endswith(".py"))
            pairs = (pair.partition("=") for pair in env.split("\0") if "=" in pair)
            found.append(
                (
                    listed[entry + 1 :],
                    {k: v for k, _, v in pairs if k not in OF_SHELLS and not k.startswith("BASH_FUNC")},
                )
            )
        return found

    def compare(self, script: str, words: Sequence[str] = ()) -> str:
        """same, refused, doubt (a word that the reader says it does not know), exit (the reader says that the script may end before
        its launch), said (another note), different, or different environment."""
        found = self._compared(script, words)
        self.outcomes[found] += 1
        return found

    def _compared(self, script: str, given: Sequence[str]) -> str:
        launches = self.launches(script, given)
        if launches is None:
            return "endless"
        try:
            launch = read_script(script, None, given, Beside(str(self.folder / "run.sh")))
        except ConfigError:
            return "refused" if launches else "no launch"
        words = [word for word in launch.words if not vanishes(word)]
        if any(in_doubt(word) for word in words):
            return "doubt"
        is_empty = bool(launch.doubts) and any(complaint in self.complaints for complaint in EMPTY)
        if launches and [bare(word) for word in words] == launches[-1][0]:
            is_same = self._same_environment(launch.env, launches[-1][1])
            return "same" if is_same else "doubt" if is_empty else "different environment"
        if any(note.endswith("the script ends here (exit)") for note in launch.notes):
            return "doubt" if launches else "exit"  # the reader goes on where it may end, and says so
        if is_empty:
            return "doubt"
        return "said" if launch.notes else "different"

    @staticmethod
    def _same_environment(ours: dict[str, Value], real: dict[str, str]) -> bool:
        doubted = {name for name, value in ours.items() if in_doubt(value)}
        known = {name: bare(value) for name, value in ours.items() if name not in doubted | OF_SHELLS}
        return known == {name: value for name, value in real.items() if name not in doubted}
