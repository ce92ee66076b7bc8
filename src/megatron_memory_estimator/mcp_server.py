"""The verbs as tools of a Model Context Protocol server; needs the extra `mcp`.

Requests are answered by processes (`service/pool.py`): one is ended when its request takes too long, or the client cancels it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from inspect import Parameter, Signature
from typing import Any, get_type_hints

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import ValidationError

from . import __version__
from .errors import EstimatorError
from .service.arguments import unknown_argument
from .service.client_words import client_words, in_client_words
from .service.pool import SECONDS, Workers
from .service.schema import TOOLS, Tool, mistaken
from .wording import plain

INSTRUCTIONS = (
    "GPU memory of Megatron training runs, for every pipeline stage. `estimate` says whether a run fits, `advise` what to change, `plan` "
    'which layouts are best, `explain` what is in memory. Answers are short JSON, in GiB where a name says so; detail="full" gives the '
    "whole document. Repeat the assumptions and warnings to the user."
)
DEEPEST = 60
"""Lists and objects inside each other in the arguments of a tool."""
AT_ONCE = (1, 64)
"""Quick requests that are worked on at once, and that may wait; and slow ones."""


LAST = ("text", "detail")
"""Arguments that stand behind the others."""


class Answers:
    """The answers of the processes as text, and their errors as the protocol has them."""

    def __init__(self, workers: Workers) -> None:
        self.workers = workers

    async def answer(self, tool: str, **arguments: Any) -> str:
        """The answer of a tool as compact JSON. Raises ToolError with the sentence that says what is wrong."""
        try:
            found = (await self.workers.answer(tool, arguments)).decode()
        except EstimatorError as error:
            raise ToolError(client_words(str(error))) from None
        return found if arguments.get("detail") == "full" else in_client_words(found)


def _deeper(value: Any, levels: int) -> bool:
    """Whether lists and objects stand in each other more than so many levels deep."""
    if not isinstance(value, dict | list):
        return False
    return levels == 0 or any(
        _deeper(one, levels - 1) for one in (value.values() if isinstance(value, dict) else value)
    )


class Server(MCPServer[Any]):
    """Refuses unknown arguments of tools, which would otherwise be dropped in silence; its messages are short."""

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        if _deeper(arguments, DEEPEST):
            raise ToolError(f"the arguments are nested more than {DEEPEST} deep")
        tool = next((tool for tool in await self.list_tools() if tool.name == name), None)
        known = tool.input_schema.get("properties", {}) if tool is not None else arguments
        for word in arguments:
            if word not in known:
                raise ToolError(plain(unknown_argument(word, name, known)))
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            cause = error.__cause__
            first = cause.errors(include_url=False)[0] if isinstance(cause, ValidationError) else None
            text = str(error) if first is None else mistaken(first, name, known)
            raise ToolError(plain(text.removeprefix(f"Error executing tool {name}: "))) from None


def tool_of(name: str, tool: Tool, answers: Answers) -> Callable[..., Coroutine[Any, Any, str]]:
    """The function of a tool, with the arguments of its model: its summary where nothing else is asked for."""

    async def asked(**arguments: Any) -> str:
        return await answers.answer(name, **arguments)

    kinds = get_type_hints(tool.arguments, include_extras=True)
    names = sorted(tool.arguments.model_fields, key=lambda word: LAST.index(word) if word in LAST else -1)
    parameters = [
        Parameter(
            word,
            Parameter.KEYWORD_ONLY,
            default="summary" if word == "detail" else tool.arguments.model_fields[word].default,
            annotation=kinds[word],
        )
        for word in names
    ]
    asked.__name__, asked.__doc__ = name, f"{tool.says}."
    asked.__signature__ = Signature(parameters, return_annotation=str)  # type: ignore[attr-defined]
    return asked


def server(folder: str | None = None, seconds: float = SECONDS) -> MCPServer[Any]:
    """The server with the tools that agents have. Files are opened below `folder` only."""
    workers = Workers(folder, seconds, quick=AT_ONCE, slow=AT_ONCE)

    @asynccontextmanager
    async def until_it_ends(app: MCPServer[Any]) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await workers.close()

    app = Server(
        "megatron-memory", instructions=INSTRUCTIONS, version=__version__, log_level="ERROR", lifespan=until_it_ends
    )
    answers = Answers(workers)
    for name, tool in TOOLS.items():
        if tool.agents:
            app.add_tool(tool_of(name, tool, answers), structured_output=False)  # the answer once, as text
    return app
