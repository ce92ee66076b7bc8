"""The arguments of every tool over HTTP: a table of models, checked before a request is worked on."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from ..service import parameters as p


class Arguments(BaseModel):
    """Nothing but the arguments that a tool has, each of its own type."""

    model_config = ConfigDict(extra="forbid", strict=True)

    detail: p.Detail = "full"


class Run(Arguments):
    """A run, by a model's name or by the text of a file."""

    model: p.Model = None
    text: p.Text = None
    num_gpus: p.NumGpus = None
    settings: p.Settings = None


class Stage(Run):
    """A pipeline stage of a run."""

    stage: p.StageNumber = None


class Explain(Stage):
    """A moment of a stage."""

    at: p.At = "peak"


class Moment(Stage):
    """A moment of a stage's timeline."""

    moment: p.Moment


class Plan(Run):
    """What is searched, and what is best."""

    num_gpus: p.PlanGpus = None
    axes: p.Axes = None
    objective: p.Objective = "throughput"
    top: p.Top = 5
    fewest_gpus: p.FewestGpus = False


class Compare(Arguments):
    """Runs side by side: models and layouts, each with each; or cases, each a run."""

    models: p.SomeModels = None
    layouts: p.Layouts = None
    num_gpus: p.NumGpus = None
    settings: p.CommonSettings = None
    cases: p.Cases = None


class Models(Arguments):
    """Which models."""

    model: p.Word = None


class Gpus(Arguments):
    """Which GPUs."""

    gpu: p.GpuWord = None


class Choices(Run):
    """A run, and the settings whose values are asked about."""

    names: p.Names = None


class Export(Plan):
    """What is exported, and of what: a run, a search or runs side by side."""

    what: p.What
    format: p.Form = None
    stage: p.StageNumber = None
    moment: p.SomeMoment = None
    at: p.At = "peak"
    models: p.SomeModels = None
    layouts: p.Layouts = None
    cases: p.Cases = None


ARGUMENTS: dict[str, type[Arguments]] = {
    "estimate": Run, "timeline": Stage, "lanes": Run, "moment": Moment, "explain": Explain, "advise": Run,
    "plan": Plan, "compare": Compare, "choices": Choices, "launch": Run, "export": Export, "models": Models, "gpus": Gpus,
    "settings": Arguments,
}  # fmt: skip
"""The arguments of the tools that are asked under /api/v1."""
LISTS = ("models", "gpus", "settings")
"""Tools that are asked with GET too."""


class MBridge(BaseModel):
    """The fields of mbridge's request, with its defaults; what a newer client adds is refused by name."""

    model_config = ConfigDict(extra="forbid")

    hf_model_path: str | None = None
    custom_hf_config: dict[str, Any] | None = None
    num_gpus: int | None = None
    mbs: int = 1
    seq_len: int = 4096
    use_distributed_optimizer: bool = True
    recompute_granularity: Literal["full", "selective"] | None = "selective"
    recompute_method: Literal["uniform", "block"] | None = "uniform"
    recompute_num_layers: int | None = 1
    recompute_modules: list[str] | None = None
    account_for_embedding_in_pipeline_split: bool = False
    account_for_loss_in_pipeline_split: bool = False
    tp: int = 1
    pp: int = 1
    ep: int = 1
    cp: int = 1
    vpp: int | None = None
    etp: int | None = None
    num_layers_in_first_pipeline_stage: int | None = None
    num_layers_in_last_pipeline_stage: int | None = None
    pipeline_model_parallel_layout: str | None = None
