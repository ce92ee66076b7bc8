"""A second process beside a search, with half of its work."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from .counting import Ask, LegalSpace

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

T = TypeVar("T")
MANY = 100_000
"""Legal layouts from which on a second process is worth its start."""


def halves(legal: LegalSpace) -> tuple[list[int], list[int]] | None:
    """The structures by number in two halves of as much work; None where a second process cannot be had or is not worth its start."""
    structures = legal.structures
    if legal.layouts < MANY or len(structures) < 2 or not sys.platform.startswith("linux"):
        return None
    numbers: tuple[list[int], list[int]] = ([], [])
    work = [0, 0]
    cost = [sum(len(style.trainings) for style in structure.styles) for structure in structures]
    for number in sorted(range(len(structures)), key=cost.__getitem__, reverse=True):
        side = int(work[0] > work[1])
        numbers[side].append(number)
        work[side] += cost[number]
    return sorted(numbers[0]), sorted(numbers[1])


def beside(mine: Callable[[], None], theirs: Callable[[Ask], T], ask: Ask) -> tuple[T | None, bool]:
    """What `theirs` gives in a process beside this one while `mine` runs here, and whether it was interrupted.

    None where that process was killed. `theirs` takes what it asks between pieces of work; `ask` is asked here. An interrupt ends
    both early, and the result is what there is.
    """
    import multiprocessing

    context = multiprocessing.get_context("fork")
    near, far = context.Pipe(duplex=False)
    child = context.Process(target=_send, args=(theirs, far), daemon=True)
    child.start()
    far.close()
    interrupted = False
    try:
        mine()
        while not near.poll(0.1):
            ask()
    except KeyboardInterrupt:
        interrupted = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid or 0, signal.SIGINT)
    except BaseException:
        child.terminate()
        child.join()
        raise
    result: T | None = None
    with contextlib.suppress(EOFError):  # it was killed
        result = near.recv()
    child.join()
    return result, interrupted


def _send(theirs: Callable[[Ask], T], pipe: Connection) -> None:
    """Work and send, as long as the process that asked is there."""
    parent = os.getppid()

    def ask() -> None:
        if os.getppid() != parent:
            os._exit(1)

    try:
        result = theirs(ask)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        pipe.send(result)
    except KeyboardInterrupt:  # outside a piece of work: nothing of it is sent
        os._exit(0)
