"""Requests answered by warm processes (`worker.py`): so many at once, others wait, and each has its time.

A process whose request takes too long, is cancelled, or ends it, is replaced. Quick tools do not wait for slow ones.

Requests answered one after another in a process of its own, which has a limit of memory and can be ended.

Each line of standard input is a request as JSON (`answers.answered` says what it has). Standard output gets lines of compact JSON: any
number of `{"progress": {...}}`, then `{"answer": document}`, `{"error": sentence}`, or `{"fault": sentence}` where the estimator itself
failed. The process ends with its input, or after an answer that left it large, before which it says `{"last": true}`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import sys
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO

from ..errors import EstimatorError, Question, QuestionsError
from .answers import LARGEST_MEMORY, answered
from .request import Progress

SECONDS = 60.0
"""Time of one request."""
LARGEST_REQUEST = 2 * 2**20
"""Characters of a request."""
LARGEST_ANSWER = 64 * 2**20
"""Bytes of a line that a process writes."""
SLOW = ("advise", "card", "compare", "plan")
"""Tools whose requests take seconds."""
CHOOSING = ("choices",)
"""Tools that read a run again and again beside its answer."""
CONSTANT = "models"
"""The tool whose answer without a word is the same for ever."""
ANSWER = b'{"answer":'


def _refused(found: Mapping[str, Any]) -> EstimatorError:
    """The error of an answer that is none."""
    if "fault" in found:
        return FaultError(found["fault"])
    asked = [Question(one["what"], one["option"], values=tuple(one["values"])) for one in found.get("questions", ())]
    return QuestionsError(found["error"], asked) if asked else EstimatorError(found["error"])


class BusyError(EstimatorError):
    """So many requests wait already that this one is not taken."""


class FaultError(EstimatorError):
    """The estimator failed, which is not the fault of the request."""


class Worker:
    """A process that answers one request at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process, self.usable = process, True

    async def answer(self, request: bytes, progress: Progress | None) -> bytes:
        """The document as compact JSON. Raises EstimatorError with its sentence. Not usable again unless this ends by itself."""
        assert self.process.stdin is not None
        self.usable, last = False, False
        with contextlib.suppress(ConnectionError):  # a process that ended is found below
            self.process.stdin.write(request + b"\n")
            await self.process.stdin.drain()
        while line := await self._line():
            if line.startswith(ANSWER):
                self.usable = not last
                return line[len(ANSWER) : -2]
            found = json.loads(line)
            if "progress" in found and progress is not None:
                progress(found["progress"])
            last = last or "last" in found
            if "error" in found or "fault" in found:
                self.usable = not last
                raise _refused(found)
        raise FaultError(
            f"the process that worked on this request ended ({await self.process.wait()}) before it answered; it may have needed more "
            f"than {LARGEST_MEMORY // 2**30} GiB, or more than the machine has; ask for less at once"
        )

    async def _line(self) -> bytes:
        """What the process writes next; nothing where it ended."""
        assert self.process.stdout is not None
        try:
            line = await self.process.stdout.readline()
        except ValueError:
            most = LARGEST_ANSWER // 2**20
            raise EstimatorError(f"the answer is longer than {most} MiB; ask for less at once") from None
        return line if line.endswith(b"\n") else b""

    def end(self) -> None:
        """End the process, whatever it does."""
        self.usable = False
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()


async def started(*, last: bool = False) -> Worker:
    """A process that warms up by itself; the `last` one to get the machine's time."""
    words = (NICE,) if last else ()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "megatron_memory_estimator.service.pool", *words, stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL, limit=LARGEST_ANSWER,
    )  # fmt: skip
    return Worker(process)


class Pool:
    """At most `size` processes; `waiting` more requests may wait for one."""

    def __init__(self, size: int, waiting: int, *, last: bool = False) -> None:
        self.size, self.waiting, self.asked, self.last = size, waiting, 0, last
        self.free: asyncio.Semaphore | None = None
        self.idle: list[asyncio.Future[Worker]] = []
        self.busy: set[Worker] = set()
        self.ending: set[asyncio.Task[object]] = set()
        self.closed = False

    def start(self) -> None:
        """Start all processes ahead of the first request; without this each starts when it is needed."""
        while len(self.idle) < self.size:
            self.idle.append(asyncio.create_task(started(last=self.last)))

    async def answer(self, request: bytes, seconds: float, progress: Progress | None = None) -> bytes:
        """The document as compact JSON. Raises EstimatorError with the sentence that says what is wrong, BusyError, FaultError."""
        if self.asked >= self.size + self.waiting:
            raise BusyError(f"{self.asked} requests are being answered or wait already; ask again in a moment")
        self.free = self.free or asyncio.Semaphore(self.size)
        self.asked += 1
        try:
            async with self.free:
                return await self._answered(request, seconds, progress)
        finally:
            self.asked -= 1

    async def _answered(self, request: bytes, seconds: float, progress: Progress | None) -> bytes:
        """The answer of a process; one that did not end its answer by itself is ended, and another started."""
        worker = await self._worker()
        self.busy.add(worker)
        try:
            return await asyncio.wait_for(worker.answer(request, progress), seconds)
        except (TimeoutError, asyncio.TimeoutError):  # two classes before Python 3.11
            raise EstimatorError(f"the request took longer than {seconds:g} s; ask for less at once") from None
        finally:  # also where the client cancels: nothing here waits
            self.busy.discard(worker)
            if worker.usable:
                self.idle.append(ready := asyncio.get_running_loop().create_future())
                ready.set_result(worker)
            else:
                self._end(worker)
                if not self.closed:
                    self.idle.append(asyncio.create_task(started(last=self.last)))

    async def _worker(self) -> Worker:
        """A process that is idle and lives; a new one where there is none."""
        while self.idle:
            ready = [task for task in self.idle if task.done()]  # others are being started
            task = (ready or self.idle)[-1]
            self.idle.remove(task)
            try:
                worker = await asyncio.shield(task)
            except asyncio.CancelledError:
                self.idle.append(task)
                raise
            except OSError:
                continue
            if worker.process.returncode is None:
                return worker
        try:
            return await started(last=self.last)
        except OSError as error:
            raise BusyError(f"no process can be started to answer this request: {error.strerror}") from None

    def _end(self, worker: Worker) -> None:
        """End a process, and collect it when it has ended."""
        worker.end()
        task: asyncio.Task[object] = asyncio.create_task(worker.process.communicate())
        self.ending.add(task)
        task.add_done_callback(self.ending.discard)

    async def close(self) -> None:
        """End every process, whatever it works on."""
        self.closed = True
        for worker in self.busy:
            worker.end()
        while self.busy:  # each is left by the request that has it
            await asyncio.sleep(0.001)
        idle, self.idle = self.idle, []
        for one in await asyncio.gather(*idle, return_exceptions=True):
            if isinstance(one, Worker):
                self._end(one)
        await asyncio.gather(*self.ending, return_exceptions=True)


class Workers:
    """The answers of all tools: quick ones, slow ones and lists of choices have processes of their own."""

    def __init__(
        self, folder: str | None, seconds: float = SECONDS, *, hub: bool = True, quick: tuple[int, int] = (3, 256),
        slow: tuple[int, int] = (2, 16), choosing: tuple[int, int] = (1, 256),
    ) -> None:  # fmt: skip
        self.folder, self.seconds, self.hub = folder, seconds, hub
        self.quick, self.slow, self.choosing = Pool(*quick), Pool(*slow), Pool(*choosing, last=True)
        self.constants: dict[str, bytes] = {}

    async def answer(self, tool: str, arguments: Mapping[str, Any], progress: Progress | None = None) -> bytes:
        """The document as compact JSON. Raises EstimatorError with the sentence that says what is wrong, BusyError, FaultError."""
        request = json.dumps(
            {"tool": tool, "arguments": arguments, "folder": self.folder, "seconds": self.seconds, "hub": self.hub}
        )
        if len(request) > LARGEST_REQUEST:
            raise EstimatorError(f"the request is longer than {LARGEST_REQUEST} characters")
        if tool == CONSTANT and all(value is None for name, value in arguments.items() if name != "detail"):
            if request not in self.constants:
                self.constants[request] = await self.quick.answer(request.encode(), self.seconds, progress)
            return self.constants[request]
        pool = self.slow if tool in SLOW else self.choosing if tool in CHOOSING else self.quick
        return await pool.answer(request.encode(), self.seconds, progress)

    def start(self) -> None:
        """Start those for quick tools ahead of the first request; a slow one does not notice the start of its process."""
        self.quick.start()
        self.choosing.start()

    async def close(self) -> None:
        """End every process."""
        await self.quick.close()
        await self.slow.close()
        await self.choosing.close()


LARGE = 2**30
"""Resident bytes above which a process is not used again."""
NICE, GIVES_WAY = "--nice", 10
"""The word with which this process gets the machine's time last, and how much it gives way."""
OBJECTS = 100_000
"""Objects made between two collections of garbage: a request makes many that live until its answer."""
WARM: dict[str, Any] = {
    "tool": "estimate", "arguments": {"model": "Qwen/Qwen3-0.6B", "num_gpus": 8, "detail": "full"}, "folder": None, "seconds": 60,
    "hub": False,
}  # fmt: skip
"""Asked before the first request, so that what an estimate needs is imported."""


def main() -> None:
    """Answer the requests on standard input."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: whoever started this process ends it
    limit_memory()
    if NICE in sys.argv and hasattr(os, "nice"):
        os.nice(GIVES_WAY)
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no answer
    answered(WARM)
    gc.freeze()
    gc.set_threshold(OBJECTS)
    serve(sys.stdin.buffer, out)


def limit_memory() -> None:
    """No more address space than LARGEST_MEMORY, where the system has such limits."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (LARGEST_MEMORY, LARGEST_MEMORY))
    except (ImportError, ValueError, OSError):
        pass


def serve(requests: Iterable[bytes], out: BinaryIO) -> None:
    """Answer each line until they end, or this process is large."""

    def tell(found: dict[str, Any]) -> None:
        out.write(line(found))
        out.flush()

    for request in requests:
        try:
            last = line(answered(json.loads(request), lambda progress: tell({"progress": progress})))
        except Exception as error:
            last = line(
                {
                    "fault": f"the estimator failed at this request ({type(error).__name__}); please report it with the request"
                }
            )
        done = large()
        out.write(line({"last": True}) + last if done else last)
        out.flush()
        if done:
            return


def line(found: dict[str, Any]) -> bytes:
    """Compact JSON, as every browser reads it: ASCII, without NaN. Raises ValueError where a number is not finite."""
    return json.dumps(found, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def large() -> bool:
    """Whether this process ever had more than LARGE resident."""
    try:
        import resource
    except ImportError:
        return False
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) > LARGE


if __name__ == "__main__":
    main()
