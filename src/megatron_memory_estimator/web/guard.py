"""What stands before the server: who may ask, how much may be sent, and the headers of every answer.

A page of another site must neither ask nor read: a name that is not this server's (DNS rebinding), an Origin or a Sec-Fetch-Site that is
not its own, and a form's content type are refused. Sources: Fetch Metadata and Content Security Policy Level 3 (W3C), Fetch (WHATWG).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .answering import refusal
from .mbridge import PATHS

LARGEST_BODY = 2 * 2**20
"""Bytes of a request's body."""
SECONDS_TO_SEND = 30.0
"""Time in which a body must arrive."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; font-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
}
API = ("/api/", *PATHS)
"""Beginnings of paths whose answers are never kept by a browser."""
READ = ("GET", "HEAD")


class Refused(NamedTuple):
    """Why a request goes no further."""

    status: int
    sentence: str


class TooLongError(Exception):
    """The body is longer than it may be."""


def own_names(host: str, port: int) -> frozenset[str]:
    """What the Host header of a request to this server may be, lower case, with the port; without it too where it is that of http."""
    names = {"127.0.0.1", "localhost", "[::1]"}
    if host not in ("0.0.0.0", "::", ""):
        names.add(f"[{host}]" if ":" in host else host.lower())
    return frozenset(name + end for name in names for end in ((f":{port}", "") if port == 80 else (f":{port}",)))


def without_port(name: str) -> str:
    """A host without its port."""
    start, colon, end = name.rpartition(":")
    return start if colon and end.isdigit() else name


class Guard:
    """The server behind its checks. `allowed` are further names of it, with any port."""

    def __init__(self, app: ASGIApp, own: frozenset[str], allowed: Iterable[str] = ()) -> None:
        self.app, self.own, self.allowed = app, own, frozenset(name.lower() for name in allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        if scope["type"] != "http":  # no web sockets here
            return
        answer = _headed(send, str(scope["path"]))
        headers = Headers(scope=scope)
        found = self.stranger(headers) or foreign(scope["method"], headers) or unreadable(scope["method"], headers)
        if found is None and scope["method"] not in READ:
            try:
                receive = _again(await asyncio.wait_for(_body(receive), SECONDS_TO_SEND), receive)
            except TooLongError:
                found = Refused(413, f"the body is longer than {LARGEST_BODY} bytes")
            except (TimeoutError, asyncio.TimeoutError):  # two classes before Python 3.11
                found = Refused(408, f"the body did not arrive within {SECONDS_TO_SEND:g} s")
        await (self.app if found is None else refusal(*found))(scope, receive, answer)

    def stranger(self, headers: Headers) -> Refused | None:
        """A request to a name that is not this server's."""
        given = [name.lower() for name in headers.getlist("host")]
        if len(given) == 1 and (given[0] in self.own or {given[0], without_port(given[0])} & self.allowed):
            return None
        return Refused(
            403, "the Host header names another server; start this one with --allow-host NAME if it has that name too"
        )


def foreign(method: str, headers: Headers) -> Refused | None:
    """A request that a page of another site makes; a link to this one may be followed."""
    site = headers.get("sec-fetch-site", "none")
    if method in READ and headers.get("sec-fetch-mode") == "navigate":
        return None
    own = [f"{scheme}://{headers.get('host', '').lower()}" for scheme in ("http", "https")]
    origins = [origin.lower() for origin in headers.getlist("origin")]
    if site in ("same-origin", "none") and all(origin in own for origin in origins):
        return None
    return Refused(403, "the request comes from a page of another site; only pages of this server may ask it")


def unreadable(method: str, headers: Headers) -> Refused | None:
    """A body of another type than JSON, or one that says that it is too long."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if method == "POST" and kind != "application/json":
        return Refused(415, "the content type of a request must be application/json")
    length = headers.get("content-length", "0")
    if not length.isdigit() or len(length) > 18 or int(length) > LARGEST_BODY:
        return Refused(413, f"the body is longer than {LARGEST_BODY} bytes")
    return None


async def _body(receive: Receive) -> bytes:
    """The whole body, also one that comes in chunks without a length."""
    parts, length, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            break
        parts.append(message.get("body", b""))
        length += len(parts[-1])
        if length > LARGEST_BODY:
            raise TooLongError
        more = message.get("more_body", False)
    return b"".join(parts)


def _again(body: bytes, receive: Receive) -> Receive:
    """The body as one message, then what comes behind it."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return first.pop() if first else await receive()

    return next_message


def _headed(send: Send, path: str) -> Send:
    """Answers with the headers that all have."""

    async def answer(message: Message) -> None:
        if message["type"] == "http.response.start":
            message.setdefault("headers", [])
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            headers["cache-control"] = "no-store" if path.startswith(API) else "no-cache"
        await send(message)

    return answer
