"""The server: the page, the API and mbridge's endpoints; needs the extra `web`."""

from __future__ import annotations

import mimetypes
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES, GZipMiddleware
from starlette.responses import HTMLResponse
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from .. import __version__
from ..errors import EstimatorError
from ..service.answers import TOOLS
from ..service.parameters import mistaken
from ..service.pool import Workers
from ..wording import shown
from . import mbridge
from .answering import LINES
from .arguments import ARGUMENTS, MBridge
from .docs_page import STYLE, page_of
from .errors import refusal, status_of
from .guard import Guard, own_names
from .routes import PREFIX, rest_router, router

if TYPE_CHECKING:
    from fastapi.telemetry import TelemetryConfig

PAGE = Path(__file__).with_name("page")
"""Files of the page."""
SAID = (
    "GPU memory of Megatron training runs, for every pipeline stage, traceable to named tensors. Arguments are JSON objects; unknown "
    'ones are refused. Every error is `{"error": sentence}`.'
)
SILENT: TelemetryConfig = {"auto_configure": False, "tracing": False, "metrics": False, "logs": False}
"""Nothing that is asked goes to a collector of telemetry, whatever the environment says. Versions of FastAPI without one pass it over."""


def server(
    workers: Workers, *, host: str = "127.0.0.1", port: int = 8000, allowed: Collection[str] = (), page: Path = PAGE,
    tools: Collection[str] = TOOLS,
) -> ASGIApp:  # fmt: skip
    """The server that listens at host and port, and answers to further names. Its processes start and end with it."""

    @asynccontextmanager
    async def alive(app: FastAPI) -> AsyncIterator[None]:
        workers.start()
        try:
            yield
        finally:
            await workers.close()

    app = FastAPI(
        title="megatron-memory", version=__version__, description=SAID, lifespan=alive, docs_url=None, redoc_url=None,
        openapi_url=f"{PREFIX}/openapi.json", telemetry=SILENT, redirect_slashes=False,
    )  # fmt: skip
    app.add_middleware(
        GZipMiddleware,
        minimum_size=2048,
        compresslevel=4,
        exclude_content_types=(*DEFAULT_EXCLUDED_CONTENT_TYPES, LINES),
    )
    add_errors(app)
    add_docs(app)
    app.include_router(router(workers, tools))
    app.include_router(mbridge.router(workers))
    app.include_router(rest_router(tools))
    if (page / "index.html").is_file():
        mimetypes.add_type("text/javascript", ".js")  # some systems call it text/plain, which no browser runs
        app.mount("/", StaticFiles(directory=page, html=True))
    return Guard(app, own_names(host, port), allowed)


def add_docs(app: FastAPI) -> None:
    """The page that describes the API, without a script."""

    async def docs() -> Response:
        return HTMLResponse(page_of(app.openapi()))

    async def style() -> Response:
        return Response(STYLE, media_type="text/css")

    app.add_api_route(f"{PREFIX}/docs", docs, include_in_schema=False)
    app.add_api_route(f"{PREFIX}/docs.css", style, include_in_schema=False)


def add_errors(app: FastAPI) -> None:
    """One sentence for whatever goes wrong; those of mbridge's endpoints under `detail` too, where its clients look."""

    def names(request: Request) -> tuple[str, ...]:
        return ("detail",) if request.url.path.startswith(mbridge.PATHS) else ()

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, EstimatorError)
        return refusal(status_of(error), str(error), None, *names(request))

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return refusal(422, sentence(error, request.url.path), None, *names(request))

    async def unserved(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        place = shown(request.url.path)
        known = {404: f"there is nothing at {place}", 405: f"{place} is not asked with {request.method}"}
        text = known.get(error.status_code, str(error.detail))
        return refusal(error.status_code, text, error.headers, *names(request))

    async def failed(request: Request, error: Exception) -> Response:
        return refusal(
            500, f"the server failed at this request ({type(error).__name__}); please report it", None, *names(request)
        )

    app.add_exception_handler(EstimatorError, refused)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, unserved)
    app.add_exception_handler(Exception, failed)


def sentence(error: RequestValidationError, path: str) -> str:
    """The first mistake of a request's arguments."""
    first = dict(error.errors()[0])
    first["loc"] = first["loc"][1:]  # behind "body" or "query"
    if first["type"] == "json_invalid":
        return f"the body is not JSON: {first['ctx']['error']}"
    if not first["loc"]:
        return "the body must be a JSON object of arguments"
    tool = path.rpartition("/")[2]
    known = ARGUMENTS.get(tool, MBridge)
    return mistaken(first, tool, list(known.model_fields))
