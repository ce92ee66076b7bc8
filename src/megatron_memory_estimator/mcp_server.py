"""The verbs as tools of a Model Context Protocol server; needs the extra `mcp`."""

from __future__ import annotations

from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from . import __version__
from .errors import ConfigError, EstimatorError
from .estimator import Estimate
from .estimator import estimate as estimate_job
from .inputs import YAML
from .inputs.resolve import canonical
from .inputs.run_config import full_name, job_from_yaml
from .job import TrainingJob
from .settings import nearest

INSTRUCTIONS = (
    "GPU memory of Megatron training runs, for every pipeline stage. `model` is a bundled model, a Hub id, a directory, a "
    "config.json or a YAML run description. `settings` are Megatron's long names, or tp, pp, ep, cp, etp, vpp. Bytes are "
    "whole numbers. Repeat the assumptions and warnings to the user."
)


def run_job(model: str, num_gpus: int | None, settings: dict[str, Any] | None) -> Estimate:
    """The estimate of one tool call. Raises ToolError with the sentence that says what is wrong."""
    try:
        return estimate_job(job_of(model, num_gpus, settings))
    except EstimatorError as error:
        raise ToolError(str(error)) from None


def job_of(model: str, num_gpus: int | None, settings: dict[str, Any] | None) -> TrainingJob:
    """The job of one tool call. Raises ToolError with the sentence that says what is wrong."""
    try:
        given = canonical(settings or {}, full_name)
        world = given.pop("world_size", None)
        if None not in (world, num_gpus) and world != num_gpus:
            raise ConfigError(f"num_gpus={num_gpus} and world_size={world} of the settings differ; give one")
        gpus = world if num_gpus is None else num_gpus
        for name in PARAMETERS & given.keys():
            raise ConfigError(f'unknown setting "{name}"')
        refuse_standard_input(model)
        if model.lower().endswith(YAML):
            return job_from_yaml(model, gpus, **given)
        return TrainingJob.from_hf(model, gpus, **given)
    except EstimatorError as error:
        raise ToolError(str(error)) from None


PARAMETERS = {"cls", "model", "path", "self", "num_gpus"}
"""Names that are parameters of Python functions on the way, not settings."""


def refuse_standard_input(model: str) -> None:
    """Raise ConfigError for "-": standard input carries the protocol."""
    if model.strip() in ("", "-"):
        raise ConfigError("the model must be a name or a path; standard input belongs to the protocol")


class Server(MCPServer[Any]):
    """Refuses unknown arguments of tools, which would otherwise be dropped in silence."""

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        tool = next((tool for tool in await self.list_tools() if tool.name == name), None)
        known = tool.input_schema.get("properties", {}) if tool is not None else arguments
        for word in arguments:
            if word not in known:
                raise ToolError(
                    f'unknown argument "{word}" of {name}; settings go under "settings".{nearest(word, known)}'
                )
        return await super().call_tool(name, arguments, context)


def server() -> MCPServer[Any]:
    """The server with the tools estimate, plan, advise, explain, compare and models."""
    app = Server("megatron-memory", instructions=INSTRUCTIONS, version=__version__, log_level="ERROR")

    @app.tool(description="What every GPU of every pipeline stage holds and when it peaks.")
    def estimate(model: str, num_gpus: int | None = None, settings: dict[str, Any] | None = None) -> dict[str, Any]:
        return run_job(model, num_gpus, settings).to_dict()

    @app.tool(description="Every named tensor alive at a stage's peak ('peak') or between two steps ('steady').")
    def explain(
        model: str,
        num_gpus: int | None = None,
        settings: dict[str, Any] | None = None,
        stage: int | None = None,
        at: str = "peak",
    ) -> dict[str, Any]:
        from .report.document import explanation

        try:
            return explanation(run_job(model, num_gpus, settings), stage, at)
        except EstimatorError as error:
            raise ToolError(str(error)) from None

    @app.tool(
        description="Models and layouts side by side: every model with every layout, a layout being a mapping of settings."
    )
    def compare(
        models: list[str], layouts: list[dict[str, Any]] | None = None, num_gpus: int | None = None
    ) -> dict[str, Any]:
        from .report.comparison import Case, as_json

        cases = []
        for model in models:
            for layout in layouts or [{}]:
                words = ",".join(f"{name}={value}" for name, value in layout.items())
                label = " ".join(part for part in (model if len(models) > 1 or not words else "", words) if part)
                gpus = None if {"num_gpus", "num-gpus", "world_size"} & layout.keys() else num_gpus
                try:
                    cases.append(Case(label, run_job(model, gpus, layout)))
                except ToolError as error:
                    raise ToolError(f"{label}: {error}") from None
        if not cases:
            raise ToolError("give at least one model")
        return as_json(cases)

    @app.tool(
        description="The best legal layouts that fit, with launch arguments. `axes` says what is searched: 4, 1,2,4, 2-16 or not:8 by "
        "name (tp, pp, cp, ep, vpp, micro_batch_size, recompute, precision, num_gpus, ...); the rest is searched whole."
    )
    def plan(
        model: str,
        num_gpus: int | None = None,
        axes: dict[str, str] | None = None,
        settings: dict[str, Any] | None = None,
        objective: str = "throughput",
        top: int = 5,
        fewest_gpus: bool = False,
    ) -> dict[str, Any]:
        from .planner.base import overlap_habits
        from .planner.planning import plan as search
        from .report.plans import Row, found_document

        given = dict(settings or {})
        batch = given.pop("global_batch_size", None)
        words = {name: str(value) for name, value in (axes or {}).items()}
        if num_gpus is not None:
            words.setdefault("num_gpus", str(num_gpus))
        try:
            habits, note = ({}, "") if model.lower().endswith(YAML) else overlap_habits(given)
            found, said = search(
                job_of(model, None, {**given, **habits}),
                words,
                global_batch_size=batch,
                objective=objective,
                top=top,
                fewest_gpus=fewest_gpus,
            )
            return found_document(found, [Row(one) for one in found.plans], (*([note] if note else []), *said))
        except EstimatorError as error:
            raise ToolError(str(error)) from None

    @app.tool(
        description="What would make a run fit, each change with what it saves and costs; or faster, where it fits with room."
    )
    def advise(model: str, num_gpus: int | None = None, settings: dict[str, Any] | None = None) -> dict[str, Any]:
        from .planner.advise import advise as changes
        from .report.advice import advice_document

        try:
            return advice_document(changes(job_of(model, num_gpus, settings)))
        except EstimatorError as error:
            raise ToolError(str(error)) from None

    @app.tool(description="The bundled models with their parameter counts, or one model.")
    def models(model: str | None = None) -> list[dict[str, Any]]:
        from .inputs.catalog import entries
        from .report.catalogue import model_facts

        try:
            if model is not None:
                refuse_standard_input(model)
            return [model_facts(name) for name in (entries() if model is None else [model])]
        except EstimatorError as error:
            raise ToolError(str(error)) from None

    return app
