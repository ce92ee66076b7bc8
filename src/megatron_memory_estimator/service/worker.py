"""Requests answered one after another in a process of its own, which has a limit of memory and can be ended.

Each line of standard input is a request as JSON (`answers.answered` says what it has). Standard output gets lines of compact JSON: any
number of `{"progress": {...}}`, then `{"answer": document}`, `{"error": sentence}`, or `{"fault": sentence}` where the estimator itself
failed. The process ends with its input, or after an answer that left it large, before which it says `{"last": true}`.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from collections.abc import Iterable
from typing import Any, BinaryIO

from .answers import LARGEST_MEMORY, answered

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
