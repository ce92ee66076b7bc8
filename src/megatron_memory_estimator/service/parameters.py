"""The parameters of the tools of servers: types, choices, and what must be known to fill them in; needs pydantic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from ..job.settings import nearest
from ..wording import shown
from .arguments import unknown_argument
from .request import MOST_PLANS

Model = Annotated[
    str | None,
    Field(
        description="A bundled model (`models` lists them) or a Hub id; a path only below the folder that the server was started with. "
        "Give either model or text.",
        examples=["meta-llama/Llama-3.1-70B"],
    ),
]
Text = Annotated[
    str | dict[str, Any] | None,
    Field(
        description="Instead of model: the content of a launch script (read, never run), a YAML file or a config.json. Variables and "
        'positional words that a script is given go into settings: {"set_variables": {"NNODES": "4", "1": "8"}}.'
    ),
]
NumGpus = Annotated[
    int | None,
    Field(ge=1, description="All GPUs of the run; where it is not given, the smallest legal number is taken and said.", examples=[64]),
]  # fmt: skip
Settings = Annotated[
    dict[str, Any] | None,
    Field(
        description="Megatron's names: tensor_model_parallel_size, pipeline_model_parallel_size, virtual_pipeline_model_parallel_size, "
        "context_parallel_size, expert_model_parallel_size, expert_tensor_parallel_size (short: tp, pp, vpp, cp, ep, etp), "
        "micro_batch_size, global_batch_size, seq_length, recompute_granularity (full, selective), recompute_modules, "
        "sequence_parallel, use_distributed_optimizer, optimizer, params_dtype, fp8, grad_reduce_in_bf16, ... Settings too: gpu "
        '(H100-80GB by default), expandable_segments, router_imbalance, phases (["training"]: a verdict without loading and saving '
        "checkpoints). Unknown names are refused with the nearest one.",
        examples=[{"gpu": "H200", "tp": 4, "recompute_granularity": "full", "global_batch_size": 512}],
    ),
]
Detail = Annotated[
    Literal["summary", "full"],
    Field(description="summary: at most 1,500 tokens; full: the whole document in bytes, often ten times as long."),
]
StageNumber = Annotated[
    int | None, Field(ge=0, description="The pipeline stage, from 0; where it is not given, that of the highest peak.")
]
At = Annotated[Literal["peak", "steady"], Field(description="peak: when most is allocated; steady: between two steps.")]
Models = Annotated[
    list[str], Field(min_length=1, description="Bundled models or Hub ids.", examples=[["Qwen/Qwen3-8B"]])
]
SomeModels = Annotated[
    list[str] | None,
    Field(min_length=1, description="Bundled models or Hub ids. Give either models or cases.", examples=[["Qwen/Qwen3-8B"]]),
]  # fmt: skip
Layouts = Annotated[
    list[dict[str, Any]] | None,
    Field(
        description="One mapping of settings for each case, num_gpus among them; every model is combined with every layout.",
        examples=[[{"tp": 4, "pp": 4}, {"tp": 8, "pp": 2, "num_gpus": 128}]],
    ),
]
CommonSettings = Annotated[
    dict[str, Any] | None,
    Field(description="Settings of every case, as `estimate` takes them; a layout's own win.", examples=[{"gpu": "H200"}]),
]  # fmt: skip
PlanGpus = Annotated[
    int | None,
    Field(ge=1, description="GPUs to plan for. Needed, unless fewest_gpus, or a run that says it, is given.", examples=[64]),
]  # fmt: skip
Axes = Annotated[
    dict[str, str] | None,
    Field(
        description="What is searched, by name: 4, 1,2,4, 2-16 or not:8 for num_gpus, tp, pp, vpp, cp, ep, etp, micro_batch_size; "
        "split (even, uneven, layout), recompute (none, full, block:N, core_attn+mlp), precision (bf16, delayed, mxfp8, ...), "
        "use_precision_aware_optimizer (on, off), optimizer_offload_fraction. The rest is searched whole.",
        examples=[{"tp": "1-8", "cp": "1", "recompute": "none,full"}],
    ),
]
Objective = Annotated[
    Literal["throughput", "memory", "head-room"],
    Field(description="What the best plan has: the shortest step, the lowest peak, or the most memory left."),
]
Top = Annotated[int, Field(ge=1, le=MOST_PLANS, description="How many plans are shown.")]
FewestGpus = Annotated[
    bool, Field(description="Find the smallest number of GPUs that holds the model, instead of num_gpus.")
]
Word = Annotated[
    str | None,
    Field(description="A word of names or types (qwen, llama, moe), or one model by name or Hub id.", examples=["qwen3"]),
]  # fmt: skip
INDEX = "The number of a moment: `index` of `timeline` and `lanes`; -1 is the capture of CUDA graphs."
Moment = Annotated[int, Field(ge=-1, description=INDEX, examples=[12])]
SomeMoment = Annotated[int | None, Field(ge=-1, description=INDEX, examples=[12])]
GpuWord = Annotated[str | None, Field(description="A word of their names.", examples=["H100"])]
Names = Annotated[
    list[str] | None,
    Field(
        max_length=100, description="Settings, by full or short names; without them those that most runs change.",
        examples=[["tp", "recompute_granularity"]],
    ),
]  # fmt: skip
Cases = Annotated[
    list[dict[str, Any]] | None,
    Field(
        min_length=2, max_length=20,
        description="Instead of models: runs, each with label, model or text, num_gpus and settings as `estimate` takes them.",
        examples=[[{"label": "tp=2", "model": "Qwen/Qwen3-8B", "num_gpus": 8, "settings": {"tp": 2}},
                   {"label": "tp=4", "model": "Qwen/Qwen3-8B", "num_gpus": 8, "settings": {"tp": 4}}]],
    ),
]  # fmt: skip
What = Annotated[
    Literal["stages", "moments", "tensors", "plans", "advice", "cases", "report"],
    Field(description="What there is a row for in the table; or report, the page frozen around the run."),
]
Form = Annotated[
    Literal["csv", "markdown", "html"] | None,
    Field(description="The format of the text: csv by default; that of a report is html."),
]


def mistaken(error: Mapping[str, Any], tool: str, known: Iterable[str]) -> str:
    """A mistake in a tool's arguments as pydantic describes it, in one sentence, with the nearest of the choices where there are some."""
    place, given = list(error["loc"]), error["input"]
    if error["type"] == "extra_forbidden":
        return unknown_argument(str(place[-1]), tool, known)
    where = ".".join(str(part) for part in place[: 3 if len(place) > 1 and isinstance(place[1], int) else 1])
    expected = error.get("ctx", {}).get("expected")
    if expected is None:
        return f"{where}: {error['msg']}"
    choices = [word.strip("' ") for word in expected.replace(" or ", ",").split(",")]
    return f"{where}={shown(given)} is not one of {', '.join(choices)}.{nearest(str(given), choices)}"
