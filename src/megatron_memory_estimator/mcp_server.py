"""The verbs as tools of a Model Context Protocol server; needs the extra `mcp`.

Requests are answered by processes (`service/pool.py`): one is ended when its request takes too long, or the client cancels it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import ValidationError

from . import __version__
from .errors import EstimatorError
from .service.arguments import unknown_argument
from .service.parameters import (
    At,
    Axes,
    CommonSettings,
    Detail,
    FewestGpus,
    Layouts,
    Model,
    Models,
    NumGpus,
    Objective,
    PlanGpus,
    Settings,
    StageNumber,
    Text,
    Top,
    Word,
    mistaken,
)
from .service.pool import SECONDS, Workers
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


class Answers:
    """The answers of the processes as text, and their errors as the protocol has them."""

    def __init__(self, workers: Workers) -> None:
        self.workers = workers

    async def answer(self, tool: str, **arguments: Any) -> str:
        """The answer of a tool as compact JSON. Raises ToolError with the sentence that says what is wrong."""
        try:
            return (await self.workers.answer(tool, arguments)).decode()
        except EstimatorError as error:
            raise ToolError(str(error)) from None


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


class Runs:
    """The tools that answer about one run."""

    def __init__(self, workers: Answers) -> None:
        self.workers = workers

    async def estimate(
        self, model: Model = None, num_gpus: NumGpus = None, settings: Settings = None, text: Text = None,
        detail: Detail = "summary",
    ) -> str:  # fmt: skip
        """Whether a run fits its GPU, what every pipeline stage holds, and when it peaks."""
        return await self.workers.answer(
            "estimate", model=model, num_gpus=num_gpus, settings=settings, text=text, detail=detail
        )

    async def explain(
        self, model: Model = None, num_gpus: NumGpus = None, settings: Settings = None, stage: StageNumber = None,
        at: At = "peak", text: Text = None, detail: Detail = "summary",
    ) -> str:  # fmt: skip
        """The named tensors that are alive on a pipeline stage, the largest first."""
        return await self.workers.answer(
            "explain", model=model, num_gpus=num_gpus, settings=settings, stage=stage, at=at, text=text, detail=detail
        )

    async def advise(
        self, model: Model = None, num_gpus: NumGpus = None, settings: Settings = None, text: Text = None,
        detail: Detail = "summary",
    ) -> str:  # fmt: skip
        """What would make a run fit, each change with what it saves and costs; or faster, where it fits with room."""
        return await self.workers.answer(
            "advise", model=model, num_gpus=num_gpus, settings=settings, text=text, detail=detail
        )


class Choices:
    """The tools that answer about several runs, or about models."""

    def __init__(self, workers: Answers) -> None:
        self.workers = workers

    async def compare(
        self, models: Models, layouts: Layouts = None, num_gpus: NumGpus = None, settings: CommonSettings = None,
        detail: Detail = "summary",
    ) -> str:  # fmt: skip
        """Models and layouts side by side, 20 cases at most: the verdict of each, and the figures that differ."""
        return await self.workers.answer(
            "compare", models=models, layouts=layouts, num_gpus=num_gpus, settings=settings, detail=detail
        )

    async def plan(
        self, model: Model = None, num_gpus: PlanGpus = None, axes: Axes = None, settings: Settings = None,
        objective: Objective = "throughput", top: Top = 5, fewest_gpus: FewestGpus = False, text: Text = None,
        detail: Detail = "summary",
    ) -> str:  # fmt: skip
        """The best legal layouts that fit, with launch arguments. Settings that are axes (tp, pp, ...) fix them."""
        return await self.workers.answer(
            "plan", model=model, num_gpus=num_gpus, axes=axes, settings=settings, objective=objective, top=top,
            fewest_gpus=fewest_gpus, text=text, detail=detail,
        )  # fmt: skip

    async def models(self, model: Word = None, detail: Detail = "summary") -> str:
        """The bundled models with their parameters: all, those with a word in their name, or one."""
        return await self.workers.answer("models", model=model, detail=detail)


def server(folder: str | None = None, seconds: float = SECONDS) -> MCPServer[Any]:
    """The server with the tools estimate, plan, advise, explain, compare and models. Files are opened below `folder` only."""
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
    runs, choices = Runs(Answers(workers)), Choices(Answers(workers))
    for tool in (runs.estimate, choices.plan, runs.advise, runs.explain, choices.compare, choices.models):
        app.add_tool(tool, structured_output=False)  # the answer once, as text
    return app
