"""The verbs as tools of a Model Context Protocol server; needs the extra `mcp`."""

from __future__ import annotations

from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from . import __version__
from .errors import ConfigError, EstimatorError
from .estimator import Estimate
from .estimator import estimate as estimate_job
from .inputs.run_config import full_name, job_from_yaml
from .job import TrainingJob

INSTRUCTIONS = (
    "GPU memory of Megatron training runs, for every pipeline stage. `model` is a bundled model, a Hub id, a directory, a "
    "config.json or a YAML run description. `settings` are Megatron's long names, or tp, pp, ep, cp, etp, vpp. Bytes are "
    "whole numbers. Repeat the assumptions and warnings to the user."
)


def run_job(model: str, num_gpus: int | None, settings: dict[str, Any] | None) -> Estimate:
    """The estimate of one tool call. Raises ToolError with the sentence that says what is wrong."""
    given = {full_name(name): value for name, value in (settings or {}).items()}
    try:
        if model.lower().endswith((".yaml", ".yml")):
            return estimate_job(job_from_yaml(model, num_gpus, **given))
        if model == "-":
            raise ConfigError("standard input belongs to the protocol; give a path or a name")
        return estimate_job(TrainingJob.from_hf(model, num_gpus, **given))
    except EstimatorError as error:
        raise ToolError(str(error)) from None


def server() -> MCPServer[Any]:
    """The server with the tools estimate, explain, compare and models."""
    app: MCPServer[Any] = MCPServer(
        "megatron-memory", instructions=INSTRUCTIONS, version=__version__, log_level="ERROR"
    )

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
                given = dict(layout)
                gpus = given.pop("num_gpus", num_gpus)
                try:
                    cases.append(Case(label, run_job(model, gpus, given)))
                except ToolError as error:
                    raise ToolError(f"{label}: {error}") from None
        if not cases:
            raise ToolError("give at least one model")
        return as_json(cases)

    @app.tool(description="The bundled models with their parameter counts, or one model.")
    def models(model: str | None = None) -> list[dict[str, Any]]:
        from .inputs.catalog import entries
        from .report.catalogue import model_facts

        try:
            return [model_facts(name) for name in ([model] if model else entries())]
        except EstimatorError as error:
            raise ToolError(str(error)) from None

    return app
