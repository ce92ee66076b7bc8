"""The tools of every server, stated once: their arguments, their documents, an example of each; needs pydantic.

The signatures of the MCP server, the paths and OpenAPI of the HTTP server, the checks of `arguments.py` (by way of `arguments.json`) and
the page's types (`web/src/tools.ts`) are made from these models. A tool's answer is made in `tools.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from ..evidence import Kind
from ..job.choices import Sizable
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
GivenFiles = Annotated[
    dict[str, str] | None,
    Field(
        description="Files that the run names, their texts by path: scripts that it sources, YAML that it builds on, config.json. The run "
        "is one of them, and model is its path; or it is text. A path finds the file that shares the most names at its end."
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
LIKE = Field(description="As `estimate` takes it.")
"""Of a tool that is asked about a run that `estimate` has answered."""
Models = Annotated[
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
        "features (published, safe, all, none, or hybridep+a2a-overlap), "
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
Baseline = Annotated[
    dict[str, Any] | None,
    Field(description="An earlier whole document of check or estimate: no stage's peak may be above its peak there."),
]  # fmt: skip
Tolerance = Annotated[str, Field(description="By how much a peak may be above it.", examples=["1%"])]
LogText = Annotated[
    str,
    Field(description="The training log's text, or its lines of memory: [Rank 0] (after 2 iterations) memory (MB) ..."),
]  # fmt: skip
What = Annotated[
    Literal["stages", "moments", "tensors", "plans", "advice", "cases", "report", "trace", "snapshot"],
    Field(
        description="What there is a row for in the table; or report, the page frozen around the run; trace, its schedule for Perfetto; "
        "snapshot, every allocation of a stage for torch's memory visualizer."
    ),
]
Form = Annotated[
    Literal["csv", "markdown", "html", "json", "pickle"] | None,
    Field(description="The format of the text: csv by default; a report is html, a trace json, a snapshot pickle."),
]


class Arguments(BaseModel):
    """Every argument is of its own type, and nothing else is taken."""

    model_config = ConfigDict(extra="forbid", strict=True)

    detail: Detail = "full"


class Run(Arguments):
    """A run, by a model's name or by the text of a file."""

    model: Model = None
    text: Text = None
    files: GivenFiles = None
    num_gpus: NumGpus = None
    settings: Settings = None


class OfModel(Arguments):
    """A model and how it is trained, without a layout."""

    model: Model = None
    settings: Settings = None


class Again(Run):
    """The same, said in short."""

    model: Annotated[str | None, LIKE] = None
    text: Annotated[str | dict[str, Any] | None, LIKE] = None
    files: Annotated[dict[str, str] | None, LIKE] = None
    num_gpus: Annotated[int | None, Field(ge=1), LIKE] = None
    settings: Annotated[dict[str, Any] | None, LIKE] = None


class OfStage(Again):
    """A pipeline stage of a run."""

    stage: StageNumber = None


class Explain(Run):
    """A moment of a stage."""

    stage: StageNumber = None
    at: At = "peak"


class OfMoment(OfStage):
    """A moment of a stage's timeline."""

    moment: Moment


class Check(Again):
    """A run, and what its peaks may be."""

    baseline: Baseline = None
    tolerance: Tolerance = "0%"


class OfLargest(Again):
    """A run, and the setting that is asked about."""

    setting: Annotated[
        Sizable,
        Field(
            description="What is to be as large as it can: tokens of a sequence, sequences, or tokens of a microbatch on a GPU."
        ),
    ]


class OfLengths(Again):
    """A run that packs samples, and their lengths."""

    lengths: Annotated[
        str,
        Field(
            description="Lengths of samples: `mean,p99,max`, a JSON list, one length, or a file's text: a length or `length count` a line."
        ),
    ]


class Validate(Again):
    """A run, and the log that it wrote."""

    log: LogText


class Why(Again):
    """A run, and a figure that was measured of it."""

    measured: Annotated[
        str, Field(description="A figure of one GPU with its unit: GiB, MiB, GB (10^9 bytes).", examples=["85.3GiB"])
    ]
    kind: Annotated[
        Kind | None,
        Field(description="The quantity that it is; where it is not given, the one that it is nearest to."),
    ] = None


class OfSnapshot(Again):
    """A memory snapshot of torch, and the run that made it."""

    snapshot: Annotated[
        str,
        Field(
            description="The file in base64, packed with gzip or not; nothing of it is run. Without a run it is told by itself."
        ),
    ]


class Plan(Run):
    """What is searched, and what is best."""

    num_gpus: PlanGpus = None
    axes: Axes = None
    objective: Objective = "throughput"
    top: Top = 5
    fewest_gpus: FewestGpus = False


class Compare(Arguments):
    """Runs side by side: models and layouts, each with each; or cases, each a run."""

    models: Models = None
    layouts: Layouts = None
    num_gpus: NumGpus = None
    settings: CommonSettings = None
    cases: Cases = None


class OfModels(Arguments):
    """Which models."""

    model: Word = None


class Gpus(Arguments):
    """Which GPUs."""

    gpu: GpuWord = None


class Choices(Run):
    """A run, and the settings whose values are asked about."""

    names: Names = None


class Export(Plan, Compare):
    """What is exported, and of what: a run, a search or runs side by side."""

    num_gpus: PlanGpus = None
    settings: Settings = None
    what: What
    format: Form = None
    stage: StageNumber = None
    moment: SomeMoment = None
    at: At = "peak"


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


class OneModel(Arguments):
    """A model by its name."""

    model: str


class Tool(NamedTuple):
    """A tool: what it says, its arguments, the quantities of its document, an example of arguments, and the doors that it has."""

    says: str
    arguments: type[BaseModel]
    document: str
    example: dict[str, Any]
    summary: bool = False
    """Whether it has a summary beside the whole document."""
    rows: bool = False
    """Whether its document is a list of such objects, or one of them."""
    read: bool = False
    """Whether it is asked with GET too."""
    agents: bool = False
    """Whether the MCP server has it."""
    own_path: bool = True
    """Whether it is asked under /api/v1."""


SMALL_SNAPSHOT = (
    "gASVmAAAAAAAAAB9lCiMCHNlZ21lbnRzlF2UfZQojAdhZGRyZXNzlEsAjAp0b3RhbF9zaXpllEoAACAAjAZibG9ja3OUXZR9lChoBEsAjARzaXpllEoAABAAjA5yZXF1ZXN0"
    "ZWRfc2l6ZZRKQEIPAIwFc3RhdGWUjBBhY3RpdmVfYWxsb2NhdGVklHVhdWGMDWRldmljZV90cmFjZXOUXZR1Lg=="
)
"""A snapshot of one block of a million bytes."""
RUN: dict[str, Any] = {"model": "Qwen/Qwen3-8B", "num_gpus": 8, "settings": {"tp": 2}}
PIPELINE: dict[str, Any] = {"model": "Qwen/Qwen3-8B", "num_gpus": 8, "settings": {"pp": 2}}
SEARCH: dict[str, Any] = {"model": "Qwen/Qwen3-8B", "num_gpus": 8, "axes": {"tp": "1,2", "cp": "1"}, "top": 2}
BESIDE: dict[str, Any] = {"models": ["Qwen/Qwen3-8B"], "layouts": [{"tp": 1}, {"tp": 4}], "num_gpus": 8}
TOOLS: dict[str, Tool] = {
    "estimate": Tool(
        "Whether a run fits its GPU, what every pipeline stage holds, and when it peaks",
        Run,
        "estimate",
        RUN,
        summary=True,
        agents=True,
    ),
    "plan": Tool(
        "The best legal layouts that fit, with launch arguments. Settings that are axes (tp, pp, ...) fix them",
        Plan,
        "plans",
        SEARCH,
        summary=True,
        agents=True,
    ),
    "advise": Tool(
        "What would make a run fit, each change with what it saves and costs; or faster, where it fits with room",
        Run,
        "advice",
        RUN,
        summary=True,
        agents=True,
    ),
    "explain": Tool(
        "The named tensors that are alive on a pipeline stage at its peak, or between two steps, the largest first",
        Explain,
        "explanation",
        RUN | {"at": "steady"},
        summary=True,
        agents=True,
    ),
    "compare": Tool(
        "Several runs side by side, 20 at most: the estimate of each, and the figures that differ",
        Compare,
        "comparison",
        BESIDE,
        summary=True,
        agents=True,
    ),
    "card": Tool(
        "What a model takes before anything is laid out: parameters, bytes of state, the fewest GPUs of each kind",
        OfModel,
        "card",
        {"model": "Qwen/Qwen3-8B"},
        agents=True,
    ),
    "models": Tool(
        "The bundled models with their parameters: all, those with a word in their names, or one",
        OfModels,
        "model_facts",
        {"model": "Qwen/Qwen3-8B"},
        summary=True,
        rows=True,
        read=True,
        agents=True,
    ),
    "timeline": Tool(
        "The memory of a stage along one training step, and its largest moments",
        OfStage,
        "timeline",
        PIPELINE | {"stage": 0},
        summary=True,
        agents=True,
    ),
    "check": Tool(
        "Whether a run may start, as an exit code and a reason; also beside an earlier answer",
        Check,
        "check",
        RUN,
        agents=True,
    ),
    "validate": Tool(
        "The memory reports of a training log beside the estimate of its run, and what may explain the difference",
        Validate,
        "log",
        RUN | {"log": "[Rank 0] (after 2 iterations) memory (MB) | allocated: 36000.0 | max allocated: 47500.0"},
        agents=True,
    ),
    "why": Tool(
        "Which quantity a measured figure is, what the run is expected to have of it, and what would make it so",
        Why,
        "why",
        RUN | {"measured": "53.5GiB"},
        agents=True,
    ),
    "snapshot": Tool(
        "What a memory snapshot of torch says of its peak, which lines made it, and how much of it the run explains",
        OfSnapshot,
        "snapshot",
        {"snapshot": SMALL_SNAPSHOT},
    ),
    "largest": Tool(
        "How large the sequence, the micro batch or a GPU's tokens of a run can be",
        OfLargest,
        "largest",
        RUN | {"setting": "seq_length"},
        agents=True,
    ),
    "lengths": Tool(
        "What the lengths of samples do to a run that packs them: its largest microbatch, what that needs, where the run breaks",
        OfLengths,
        "lengths",
        {"model": "Qwen/Qwen3-0.6B", "num_gpus": 8, "settings": {"packing": "verl"}, "lengths": "900,3000,4096"},
        agents=True,
    ),
    "lanes": Tool("One training step of all stages beside one another, in columns", Run, "lanes", PIPELINE),
    "moment": Tool(
        "Every tensor that is alive at the highest of a moment",
        OfMoment,
        "moment",
        PIPELINE | {"stage": 0, "moment": 3},
    ),
    "choices": Tool(
        "The values of settings, and why each that is refused is refused", Choices, "choices", RUN | {"names": ["tp"]}
    ),
    "launch": Tool("A run as launch arguments", Run, "launch", RUN),
    "export": Tool("A table of a run as text", Export, "export", RUN | {"what": "stages"}),
    "gpus": Tool(
        "The GPUs that estimates are judged against",
        Gpus,
        "gpu_facts",
        {"gpu": "H100"},
        rows=True,
        read=True,
        agents=True,
    ),
    "settings": Tool(
        "Every setting that can be given, with its kind and default", Arguments, "setting_catalogue", {}, read=True
    ),
    "mbridge": Tool("A report for each pipeline stage, as mbridge has it", MBridge, "", {}, own_path=False),
    "megatron_config": Tool(
        "The architecture of a model in TransformerConfig's names", OneModel, "", {}, own_path=False
    ),
}
"""Every tool by its name."""


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
