"""The verbs as tools of a Model Context Protocol server; needs the extra `mcp`.

Requests are answered by processes (`service/pool.py`): one is ended when its request takes too long, or the client cancels it.

Sentences in the words of a client that has no command line: its arguments and settings in place of options.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import cache
from inspect import Parameter, Signature
from typing import Any, get_type_hints

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import ValidationError

from . import __version__
from .errors import EstimatorError
from .inputs.setting_names import full_name
from .service.arguments import unknown_argument
from .service.pool import SECONDS, Workers
from .service.schema import TOOLS, Tool, mistaken
from .wording import plain

# -- sentences in the words of a client --------------------------------------------------------------------------------

OPTION = re.compile(r"--(no-)?([a-z][a-z0-9]*(?:-[a-z0-9]+)*)")
COMMAND = re.compile(r"megatron-memory ([a-z]+)(?: MODEL)?")
ARGUMENTS = {
    "min-num-gpus": "fewest_gpus=true",
    "num-gpus": "num_gpus",
    "gpu": "gpu",
    "max-increase": "baseline",
    "set": "set_variables",
    "model": "model",
    "layout": "layouts",
    "stage": "stage",
    "tight": 'detail="full", which has tight_plans,',
    "show": 'detail="full"',
    "verbose": 'detail="full"',
    "recompute": "recompute",
    "ignore-unknown": "ignore_unknown=true",
    "without-unmodelled": "without_unmodelled=true",
}
"""Options that are no settings: the argument of a tool that says the same."""
SENTENCES = frozenset(
    (
        "answer",
        "answers",
        "changes",
        "sentence",
        "reason",
        "assumptions",
        "warnings",
        "notes",
        "next",
        "refused",
        "cases",
        "better_but_tight",
    )
)
"""Parts of a short answer that are sentences; launch arguments stay as they are."""


@cache
def _kinds() -> dict[str, str]:
    """The kind of each setting."""
    from .report.settings import settings_document

    return {one["name"]: one["kind"] for one in settings_document()["settings"]}


def _worded(found: re.Match[str]) -> str:
    """An option as a setting or an argument; an unknown one as it is."""
    off, word = found.groups()
    if word in ARGUMENTS:
        return ARGUMENTS[word]
    name = word.replace("-", "_")
    kind = _kinds().get(full_name(name))
    if kind is None:
        return found[0]
    return f"{name}={'false' if off else 'true'}" if kind == "bool" else name


def client_words(sentence: str) -> str:
    """A sentence that names options, in a client's words."""
    return OPTION.sub(_worded, COMMAND.sub(r"the tool \1", sentence)).replace("`", "")


def _said(value: Any) -> Any:
    if isinstance(value, str):
        return client_words(value)
    return [_said(one) for one in value] if isinstance(value, list) else value


def in_client_words(document: str) -> str:
    """A short answer, compact JSON, with its sentences in a client's words."""
    found = json.loads(document)
    if not isinstance(found, dict):
        return document
    said = {name: _said(value) if name in SENTENCES else value for name, value in found.items()}
    return json.dumps(said, separators=(",", ":"))


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
