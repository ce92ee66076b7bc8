"""Answers as HTTP sends them: whole, or as lines with progress; a client that goes away ends the work."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ..errors import EstimatorError
from ..service.request import Progress
from ..wording import LONGEST_QUESTIONS, plain
from .errors import refusal

LINES = "application/x-ndjson"
JSON = "application/json"
GONE = 499
"""Status of an answer that nobody reads."""
Work = Callable[[Progress | None], Awaitable[bytes]]
"""Gives a document as compact JSON, and tells how far it is."""


async def answer(request: Request, work: Work) -> Response:
    """The document, or lines where the client accepts them. Raises EstimatorError as `Workers.answer` does."""
    if LINES in request.headers.get("accept", ""):
        return StreamingResponse(lines(request, work), media_type=LINES)
    working, leaving = asyncio.ensure_future(work(None)), asyncio.create_task(gone(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return Response(working.result(), media_type=JSON)
        return refusal(GONE, "the client went away")
    finally:
        working.cancel()
        leaving.cancel()


async def lines(request: Request, work: Work) -> AsyncIterator[bytes]:
    """`{"progress": ...}` any number of times, then `{"answer": document}` or `{"error": sentence}`."""
    told: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def worked() -> None:
        try:
            told.put_nowait(b'{"answer":' + await work(lambda found: told.put_nowait(line("progress", found))) + b"}\n")
        except EstimatorError as error:
            told.put_nowait(line("error", plain(str(error), LONGEST_QUESTIONS)))
        finally:
            told.put_nowait(None)

    working, leaving = asyncio.create_task(worked()), asyncio.create_task(gone(request))
    leaving.add_done_callback(lambda _: working.cancel())
    try:
        while (one := await told.get()) is not None:
            yield one
    finally:
        working.cancel()
        leaving.cancel()


def line(name: str, found: Any) -> bytes:
    """A line of compact JSON with one key."""
    return json.dumps({name: found}, separators=(",", ":")).encode() + b"\n"


async def gone(request: Request) -> None:
    """Until the client closes the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
