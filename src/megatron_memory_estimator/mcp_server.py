"""The verbs as tools of a Model Context Protocol server; needs the extra `mcp`.

Every request is answered by a process of its own (`mcp_worker.py`): it is ended after a time, or when the client cancels it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from . import __version__
from .job.settings import nearest
from .wording import plain

INSTRUCTIONS = (
    "GPU memory of Megatron training runs, for every pipeline stage. `model` is a bundled model or a Hub id{files}; the content of a "
    "config.json, a YAML run description or a launch script is passed as `text`. `settings` are Megatron's long names, or tp, pp, ep, "
    "cp, etp, vpp. Bytes are whole numbers. Repeat the assumptions and warnings to the user."
)
SECONDS = 60.0
"""Time of one request."""
AT_ONCE = 2
"""Requests that are worked on at once; others wait."""
LARGEST_REQUEST = 2 * 2**20
"""Characters of a request's arguments."""

Settings = dict[str, Any] | None
Text = str | dict[str, Any] | None
"""What every tool that describes a run takes; a client may make an object of a config.json."""


class Workers:
    """Answers requests in processes of their own, so many at once, each for so many seconds."""

    def __init__(self, folder: str | None, seconds: float) -> None:
        self.folder, self.seconds = folder, seconds
        self.free: asyncio.Semaphore | None = None

    async def answer(self, tool: str, **arguments: Any) -> Any:
        """The answer of a tool. Raises ToolError with the sentence that says what is wrong."""
        if isinstance(arguments.get("text"), dict):  # a config.json as an object; clients also make one of its text
            arguments["text"] = json.dumps(arguments["text"])
        request = json.dumps({"tool": tool, "arguments": arguments, "folder": self.folder, "seconds": self.seconds})
        if len(request) > LARGEST_REQUEST:
            raise ToolError(f"the request is longer than {LARGEST_REQUEST} characters")
        if self.free is None:
            self.free = asyncio.Semaphore(AT_ONCE)
        async with self.free:
            worker = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "megatron_memory_estimator.mcp_worker", stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
            try:
                out, _ = await asyncio.wait_for(worker.communicate(request.encode()), self.seconds)
            except (TimeoutError, asyncio.TimeoutError):  # two classes before Python 3.11
                raise ToolError(f"the request took longer than {self.seconds:g} s; ask for less at once") from None
            finally:  # also where the client cancels
                if worker.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        worker.kill()
                    await worker.wait()
        try:
            found = json.loads(out)
        except ValueError:
            raise ToolError(
                "the request could not be answered within the limits of memory; ask for less at once"
            ) from None
        if "error" in found:
            raise ToolError(found["error"])
        return found["answer"]

    async def document(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The answer of a tool that is one document."""
        found: dict[str, Any] = await self.answer(tool, **arguments)
        return found


class Server(MCPServer[Any]):
    """Refuses unknown arguments of tools, which would otherwise be dropped in silence; its messages are short."""

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        tool = next((tool for tool in await self.list_tools() if tool.name == name), None)
        known = tool.input_schema.get("properties", {}) if tool is not None else arguments
        for word in arguments:
            if word not in known:
                raise ToolError(
                    plain(f'unknown argument "{word}" of {name}; settings go under "settings".{nearest(word, known)}')
                )
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            raise ToolError(plain(str(error))) from None


def server(folder: str | None = None, seconds: float = SECONDS) -> MCPServer[Any]:
    """The server with the tools estimate, plan, advise, explain, compare and models. Files are opened below `folder` only."""
    files = ", or the path of a file below the folder that the server was started with" if folder is not None else ""
    app = Server(
        "megatron-memory", instructions=INSTRUCTIONS.format(files=files), version=__version__, log_level="ERROR"
    )
    workers = Workers(folder, seconds)

    @app.tool(description="What every GPU of every pipeline stage holds and when it peaks. Give `model`, or `text`: the content of a "
              "config.json, a YAML file or a launch script.")  # fmt: skip
    async def estimate(
        model: str | None = None, num_gpus: int | None = None, settings: Settings = None, text: Text = None
    ) -> dict[str, Any]:
        return await workers.document("estimate", model=model, num_gpus=num_gpus, settings=settings, text=text)

    @app.tool(description="Every named tensor alive at a stage's peak ('peak') or between two steps ('steady').")
    async def explain(
        model: str | None = None,
        num_gpus: int | None = None,
        settings: Settings = None,
        stage: int | None = None,
        at: str = "peak",
        text: Text = None,
    ) -> dict[str, Any]:
        return await workers.document(
            "explain", model=model, num_gpus=num_gpus, settings=settings, stage=stage, at=at, text=text
        )

    @app.tool(
        description="Models and layouts side by side: every model with every layout, a layout being a mapping of settings."
    )
    async def compare(
        models: list[str], layouts: list[dict[str, Any]] | None = None, num_gpus: int | None = None
    ) -> dict[str, Any]:
        return await workers.document("compare", models=models, layouts=layouts, num_gpus=num_gpus)

    @app.tool(
        description="The best legal layouts that fit, with launch arguments. `axes` says what is searched: 4, 1,2,4, 2-16 or not:8 by "
        "name (tp, pp, cp, ep, vpp, micro_batch_size, recompute, precision, num_gpus, ...); the rest is searched whole."
    )
    async def plan(
        model: str | None = None,
        num_gpus: int | None = None,
        axes: dict[str, str] | None = None,
        settings: Settings = None,
        objective: str = "throughput",
        top: int = 5,
        fewest_gpus: bool = False,
        text: Text = None,
    ) -> dict[str, Any]:
        return await workers.document(
            "plan", model=model, num_gpus=num_gpus, axes=axes, settings=settings, objective=objective, top=top,
            fewest_gpus=fewest_gpus, text=text,
        )  # fmt: skip

    @app.tool(
        description="What would make a run fit, each change with what it saves and costs; or faster, where it fits with room."
    )
    async def advise(
        model: str | None = None, num_gpus: int | None = None, settings: Settings = None, text: Text = None
    ) -> dict[str, Any]:
        return await workers.document("advise", model=model, num_gpus=num_gpus, settings=settings, text=text)

    @app.tool(description="The bundled models with their parameter counts, or one model.")
    async def models(model: str | None = None) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = await workers.answer("models", model=model)
        return found

    return app
