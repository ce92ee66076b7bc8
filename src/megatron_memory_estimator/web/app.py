"""The server: the page, the API and mbridge's endpoints; needs the extra `web`.

The description of the API as a page of plain HTML, made from its OpenAPI description.

The paths of the API: a POST for every tool, a GET too for those that list, and a sentence for every other path.
"""

from __future__ import annotations

import json
import mimetypes
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import asynccontextmanager
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Body, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES, GZipMiddleware
from starlette.responses import HTMLResponse
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from .. import __version__
from ..errors import EstimatorError, QuestionsError
from ..job.settings import nearest
from ..service.pool import Workers
from ..service.schema import TOOLS, Arguments, MBridge, mistaken
from ..wording import LONGEST_SHOWN, shown
from . import mbridge
from .answering import EVERY, LINES, answer, refusal, status_of
from .documents import answers_of
from .guard import Guard, own_names

if TYPE_CHECKING:
    from fastapi.telemetry import TelemetryConfig


PAGE = Path(__file__).with_name("page")
"""Files of the page."""
SAID = (
    "GPU memory of Megatron training runs, for every pipeline stage, traceable to named tensors. Arguments are JSON objects; unknown "
    'ones are refused. Every error is `{"error": sentence}`; `questions` has what a run leaves open.'
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
        questions = error.questions if isinstance(error, QuestionsError) else ()
        return refusal(status_of(error), str(error), None, *names(request), questions=questions)

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
    known = TOOLS[tool].arguments if tool in TOOLS else MBridge
    return mistaken(first, tool, list(known.model_fields))


Json = Mapping[str, Any]
STYLE = """:root { color-scheme: light dark }
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h2 { margin-top: 2.5rem; border-top: 1px solid; padding-top: 1rem }
code, pre { font-family: ui-monospace, monospace; font-size: .9em; overflow-wrap: anywhere }
pre { overflow-x: auto; border: 1px solid; padding: .5rem }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid }
"""


def page_of(description: Json) -> str:
    """The page of an OpenAPI description."""
    title = escape(description["info"]["title"])
    operations = [
        (path, method, operation)
        for path, methods in description["paths"].items()
        for method, operation in methods.items()
    ]
    links = "".join(
        f'<li><a href="#{one["operationId"]}">{_name(path, method)}</a></li>' for path, method, one in operations
    )
    body = "".join(part for one in operations for part in _operation(*one, description))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title} API</title>'
        '<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
        '<link rel="stylesheet" href="docs.css"></head><body>'
        f"<h1>{title} API</h1><p>{escape(description['info']['description'])}</p>"
        f'<p><a href="openapi.json">OpenAPI description</a></p><ul>{links}</ul>{body}</body></html>'
    )


def _name(path: str, method: str) -> str:
    return f"<code>{method.upper()} {escape(path)}</code>"


def _operation(path: str, method: str, operation: Json, description: Json) -> Iterator[str]:
    """A path with its arguments, an example, and what it answers."""
    yield f'<h2 id="{operation["operationId"]}">{_name(path, method)}</h2>'
    yield f"<p>{escape(operation.get('description') or operation.get('summary', ''))}</p>"
    schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    named = description.get("components", {}).get("schemas", {}).get(schema.get("$ref", "").rpartition("/")[2], schema)
    rows = [(name, one, name in named.get("required", ())) for name, one in named.get("properties", {}).items()]
    rows += [(one["name"], {"description": one.get("description", ""), **one["schema"]}, one.get("required")) for one in
             operation.get("parameters", ())]  # fmt: skip
    if rows:
        yield "<table><tr><th>argument</th><th>kind</th><th>what</th></tr>"
        for name, one, needed in rows:
            what = escape(one.get("description", "")) + _default(one)
            yield f"<tr><td><code>{escape(name)}</code>{' (needed)' if needed else ''}</td><td>{escape(kind(one))}</td><td>{what}</td></tr>"
        yield "</table>"
    example = next(iter(schema.get("examples", ())), None)
    if example is not None:
        yield f"<p>Example:</p><pre>{escape(json.dumps(example))}</pre>"
    yield "<table><tr><th>status</th><th>answer</th></tr>"
    for status, reply in operation["responses"].items():
        yield f"<tr><td>{status}</td><td>{escape(reply['description'])}{_keys(reply)}</td></tr>"
    yield "</table>"


def kind(schema: Json) -> str:
    """The kind of a value in words."""
    if "anyOf" in schema:
        return " or ".join(kind(one) for one in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return ", ".join(map(str, schema.get("enum", [schema.get("const")])))
    return str(schema.get("type", "any"))


def _default(schema: Json) -> str:
    return (
        f" Default: <code>{escape(json.dumps(schema['default']))}</code>." if schema.get("default") is not None else ""
    )


def _keys(reply: Json) -> str:
    """The keys of a document."""
    schema = reply.get("content", {}).get("application/json", {}).get("schema", {})
    while "anyOf" in schema:
        schema = schema["anyOf"][0]
    keys = ", ".join(f"<code>{escape(name)}</code>" for name in schema.get("properties", {}))
    return f" Keys: {keys}." if keys else ""


PREFIX = "/api/v1"


def router(workers: Workers, tools: Collection[str]) -> APIRouter:
    """The paths of those tools that are in the table."""
    found = APIRouter(prefix=PREFIX)
    for tool in (name for name, one in TOOLS.items() if one.own_path and name in tools):
        add(found, workers, tool)
    return found


def add(routes: APIRouter, workers: Workers, tool: str) -> None:
    """The paths of a tool."""
    stated = TOOLS[tool]

    async def ask(request: Request, given: Arguments) -> Response:
        asked = given.model_dump()
        return await answer(request, lambda progress: workers.answer(tool, asked, progress))

    async def list_(request: Request, given: Arguments) -> Response:
        return await ask(request, given)

    described: dict[str, Any] = {
        "summary": stated.says, "response_class": Response, "response_model": None, "tags": ["tools"],
        "responses": answers_of(stated),
    }  # fmt: skip
    ask.__annotations__["given"] = Annotated[stated.arguments, Body(examples=[stated.example])]
    routes.add_api_route(f"/{tool}", ask, methods=["POST"], operation_id=tool, **described)
    if stated.read:
        list_.__annotations__["given"] = Annotated[stated.arguments, Query()]
        routes.add_api_route(f"/{tool}", list_, methods=["GET"], operation_id=f"list_{tool}", **described)


def rest_router(tools: Collection[str]) -> APIRouter:
    """A sentence for every other path below the prefix; no part of the description."""
    known = [name for name, one in TOOLS.items() if one.own_path and name in tools]

    async def rest(path: str) -> Response:
        if path in known:
            methods = "POST, GET" if TOOLS[path].read else "POST"
            return refusal(405, f"{PREFIX}/{path} is asked with {methods.replace(', ', ' or ')}", {"allow": methods})
        word = path[:LONGEST_SHOWN]
        hint = nearest(word, known) or f" The tools are {', '.join(known)}."
        return refusal(404, f'no tool "{word}".{hint}')

    found = APIRouter(prefix=PREFIX)
    found.add_api_route("/{path:path}", rest, methods=EVERY, include_in_schema=False)
    return found
