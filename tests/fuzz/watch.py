"""One case of a reader, watched: what it raises, says, prints, opens and starts, and what it takes."""

from __future__ import annotations

import json
import os
import re
import resource
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megatron_memory_estimator.errors import EstimatorError
from megatron_memory_estimator.wording import LONGEST_MESSAGE

from .mutate import Words, as_text

SECONDS = 2.0
MEMORY = 200 * 2**20
"""CPU seconds and bytes of a case."""
MARK = "\0"
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
STARTED = {
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "os.fork",
    "os.forkpty",
    "pty.spawn",
    "os.startfile",
}
TOUCHED = {
    "open", "os.listdir", "os.scandir", "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.chmod", "os.link", "os.symlink",
    "os.truncate",
    "shutil.rmtree", "shutil.copyfile", "shutil.move", "shutil.unpack_archive", "os.chown", "os.utime",
}  # fmt: skip
READS = ("open", "os.listdir", "os.scandir")
ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True)
class Outcome:
    """What a reader made of a case: sentences that a user sees."""

    accepted: bool
    said: tuple[str, ...] = ()
    wrong: str = ""
    longest: int = LONGEST_MESSAGE


@dataclass(frozen=True)
class Reader:
    """A reader with its seeds, the mutation of a case beside another one, and the function that reads a case in a folder.

    `seconds` is the CPU time of a case; `names_files` says that a case may name a file that is opened.
    """

    name: str
    seeds: Callable[[], list[Any]]
    change: Callable[[Any, Any, Any, Words], Any]
    read: Callable[[Any, Path], Outcome]
    words: Callable[[], Words] = Words
    seconds: float = SECONDS
    names_files: bool = False


@dataclass(frozen=True)
class Finding:
    """Something that a reader must not do; `key` is the same for the same defect."""

    reader: str
    kind: str
    what: str
    key: str
    case: Any


@dataclass
class Events:
    """What was opened and started since the last case; the hook stays for the life of the process."""

    folder: str
    on: bool = False
    case: Any = None
    names_files: bool = False
    seen: list[str] = field(default_factory=list)
    allowed: tuple[str, ...] = ()

    def install(self) -> None:
        """Watch from now on."""
        places = (self.folder, sys.prefix, sys.base_prefix, *(path for path in sys.path if path), str(ROOT / "src"))
        self.allowed = tuple({os.path.realpath(place).rstrip(os.sep) + os.sep for place in places} | {os.devnull})
        sys.addaudithook(self.hook)

    def hook(self, event: str, args: tuple[Any, ...]) -> None:
        """Called by Python for every event. A forbidden one is noted and does not happen."""
        if not self.on:
            return
        if event in STARTED or event.startswith("socket."):
            self._refuse(f"{event} {args!r}"[:300])
        elif event in TOUCHED:
            writes = event not in READS or (
                event == "open" and isinstance(args[1], str) and args[1].strip("rbtU") != ""
            )
            for path in args[: 2 if event in ("os.rename", "os.link", "os.symlink") else 1]:
                self._touched(event, path, writes=writes)
        elif event in ("compile", "exec") and not _importing():
            self._refuse(f"{event} {args[-1]!r}")

    def _touched(self, event: str, path: Any, *, writes: bool) -> None:
        if not isinstance(path, str | bytes):
            return
        full = os.path.realpath(os.fsdecode(path))
        inside = (full + os.sep).startswith(self.allowed) or full == os.devnull
        if writes and full != os.devnull and not full.startswith(os.path.realpath(self.folder)):
            inside = False
        if inside or (not writes and full.startswith("/proc/self")):
            return
        if (
            self.names_files
            and os.path.basename(full)
            and os.path.basename(full) in json.dumps(self.case, ensure_ascii=False)
        ):
            if writes:
                raise PermissionError(13, "Permission denied")
            return
        self._refuse(f"{event} {path!r}")

    def _refuse(self, what: str) -> None:
        self.seen.append(what)
        raise PermissionError(13, "Permission denied")


def _importing() -> bool:
    """Whether a module is being loaded."""
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


class Memory:
    """The largest growth of resident memory, where the system tells."""

    def __init__(self) -> None:
        self.resets = os.path.exists("/proc/self/clear_refs")

    def start(self) -> int:
        """Forget the largest size so far; bytes now."""
        if self.resets:
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")
        return self.most()

    def most(self) -> int:
        """The largest size since the start, in bytes."""
        if self.resets:
            with open("/proc/self/status") as file:
                return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def observed(reader: Reader, case: Any, folder: Path, events: Events | None = None) -> tuple[Outcome, Finding | None]:
    """What a reader makes of a case, and the finding if there is one."""

    def finding(kind: str, what: str, key: str = "") -> tuple[Outcome, Finding]:
        return Outcome(False), Finding(reader.name, kind, what, f"{kind} {key or masked(what)}", case)

    memory = Memory()
    before, text = memory.start(), json.dumps(case)
    start = time.process_time()
    if events is not None:
        events.case, events.names_files, events.seen, events.on = case, reader.names_files, [], True
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            outcome = reader.read(case, folder)
        except EstimatorError as error:
            outcome = Outcome(False, (str(error),), longest=error.longest)
        except Exception as error:
            if events is not None:
                events.on = False
                if events.seen:
                    return finding("event", events.seen[0])
            name = type(error).__name__
            return finding("exception", f"{name}: {error}"[:300] + f"\n{_trace(error)}", f"{name} {_where(error)}")
        finally:
            if events is not None:
                events.on = False
    took, grown = time.process_time() - start, memory.most() - before
    if events is not None and events.seen:
        return finding("event", events.seen[0])
    if warned:
        return finding(
            "warning", f"{warned[0].category.__name__}: {warned[0].message} ({warned[0].filename}:{warned[0].lineno})"
        )
    if outcome.wrong:
        return finding("output", outcome.wrong)
    if wrong := next(wrong_sentences(outcome.said, outcome.longest), None):
        return finding("message", wrong)
    if json.dumps(case) != text:
        return finding("input", "the input was changed")
    if took > reader.seconds and len(text) <= 2 * 10_000:
        return finding("time", f"{took:.1f} s", masked(" ".join(outcome.said)[:80]))
    if grown > MEMORY:
        return finding("memory", f"{grown // 2**20} MB", masked(" ".join(outcome.said)[:80]))
    return outcome, None


def wrong_sentences(said: Sequence[str], longest: int = LONGEST_MESSAGE) -> Iterator[str]:
    """What is wrong with sentences that users see."""
    for one in said:
        if len(one) > longest:
            yield f"{len(one)} characters: {one[:200]!r}"
        elif odd := CONTROL.search(one):
            yield f"{odd[0]!r} in {one[:300]!r}"


def masked(sentence: str) -> str:
    """A sentence without what comes from the input: quoted parts and digits."""
    return re.sub(r"[0-9]+", "0", re.sub(r"'.*'|\".*\"|\[.*\]|\{.*\}|=\S+", "_", sentence, flags=re.DOTALL))


def _where(error: BaseException) -> str:
    """The innermost line of this project."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if "megatron_memory_estimator" in frame.filename
    ]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""


def _trace(error: BaseException) -> str:
    """The innermost calls."""
    return "".join(traceback.format_tb(error.__traceback__)[-3:])


def written(folder: Path, name: str, case: Any) -> str:
    """The path of a file with the case in it."""
    path = folder / name
    path.write_bytes((case if isinstance(case, str) else as_text(case)).encode("utf-8", "surrogatepass"))
    return str(path)


def scratch() -> Path:
    """A new folder for files of cases."""
    return Path(tempfile.mkdtemp(prefix="fuzz-"))
