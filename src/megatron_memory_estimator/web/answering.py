"""Answers as HTTP sends them: whole, or as lines with progress; a client that goes away ends the work.

Errors over HTTP: `{"error": sentence}` with a status, whatever went wrong.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ..errors import EstimatorError, Question
from ..service.answers import asked
from ..service.pool import BusyError, FaultError
from ..service.request import Progress
from ..wording import LONGEST_QUESTIONS, plain

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


EVERY = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
"""The methods that are answered with a sentence where a path has them not."""


def status_of(error: EstimatorError) -> int:
    """422 where the request is refused, 429 where too many wait, 500 where the estimator failed."""
    return 429 if isinstance(error, BusyError) else 500 if isinstance(error, FaultError) else 422


def refusal(
    status: int,
    sentence: str,
    headers: Mapping[str, str] | None = None,
    *names: str,
    questions: Sequence[Question] = (),
) -> Response:
    """The sentence as JSON, under `error` and other names, and what a run leaves open under `questions`."""
    said: dict[str, Any] = dict.fromkeys(("error", *names), plain(sentence, LONGEST_QUESTIONS))
    body = json.dumps(said | ({"questions": [asked(one) for one in questions]} if questions else {}))
    more = {"retry-after": "1"} if status == 429 else {}
    return Response(body, status, {**more, **(headers or {})}, "application/json")
