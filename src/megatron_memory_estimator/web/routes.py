"""The paths of the API: a POST for every tool, a GET too for those that list, and a sentence for every other path."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Request, Response

from ..job.settings import nearest
from ..service.pool import Workers
from ..wording import LONGEST_SHOWN
from .answering import answer
from .arguments import ARGUMENTS, LISTS, Arguments
from .documents import DOCUMENTS, answers_of
from .errors import EVERY, refusal

PREFIX = "/api/v1"


def router(workers: Workers, tools: Collection[str]) -> APIRouter:
    """The paths of those tools that are in the table."""
    found = APIRouter(prefix=PREFIX)
    for tool in (name for name in ARGUMENTS if name in tools):
        add(found, workers, tool)
    return found


def add(routes: APIRouter, workers: Workers, tool: str) -> None:
    """The paths of a tool."""
    arguments, document = ARGUMENTS[tool], DOCUMENTS[tool]

    async def ask(request: Request, given: Arguments) -> Response:
        asked = given.model_dump()
        return await answer(request, lambda progress: workers.answer(tool, asked, progress))

    async def list_(request: Request, given: Arguments) -> Response:
        return await ask(request, given)

    described: dict[str, Any] = {
        "summary": document.says, "response_class": Response, "response_model": None, "tags": ["tools"],
        "responses": answers_of(tool, document),
    }  # fmt: skip
    ask.__annotations__["given"] = Annotated[arguments, Body(examples=[document.example])]
    routes.add_api_route(f"/{tool}", ask, methods=["POST"], operation_id=tool, **described)
    if tool in LISTS:
        list_.__annotations__["given"] = Annotated[arguments, Query()]
        routes.add_api_route(f"/{tool}", list_, methods=["GET"], operation_id=f"list_{tool}", **described)


def rest_router(tools: Collection[str]) -> APIRouter:
    """A sentence for every other path below the prefix; no part of the description."""
    known = [name for name in ARGUMENTS if name in tools]

    async def rest(path: str) -> Response:
        if path in known:
            methods = "POST, GET" if path in LISTS else "POST"
            return refusal(405, f"{PREFIX}/{path} is asked with {methods.replace(', ', ' or ')}", {"allow": methods})
        word = path[:LONGEST_SHOWN]
        hint = nearest(word, known) or f" The tools are {', '.join(known)}."
        return refusal(404, f'no tool "{word}".{hint}')

    found = APIRouter(prefix=PREFIX)
    found.add_api_route("/{path:path}", rest, methods=EVERY, include_in_schema=False)
    return found
