"""GPU memory of Megatron training runs, for every pipeline stage, with every byte traceable to a named tensor.

from megatron_memory_estimator import TrainingJob, estimate
job = TrainingJob.from_hf("Qwen/Qwen3-8B", num_gpus=8, tensor_model_parallel_size=2)
print(estimate(job).peak_stage.peak_allocated_bytes)

TrainingJob        a training run: from_hf, from_config, from_megatron_args and from_bridge make one
Settings           the keywords of these, by Megatron's names: what an editor completes and a type checker holds
estimate           what every GPU of a run holds, and when it peaks
Estimate           the answer: stages, verdict, to_dict(), table()
Stage              one pipeline stage of it: peak_allocated_bytes, breakdown_bytes, rows
Verdict            what a run is on a GPU: word, fits, events (what each phase needs), head_room
Timeline           what a stage has allocated along one step: moments, peak, plot()
plan               the best legal layouts of a run on some GPUs
Planned            the answer of plan: found.plans, table(), plot()
sweep              the plans of many jobs, wherever an executor runs them
card               what a model takes before anything is laid out: parameters, state, fewest GPUs by kind
Card               the answer of card: rows, table()
largest            how large the sequence, the micro batch or a GPU's tokens can be
Largest            the answer of largest: sure, possible, at (the estimate)
sample_lengths     what the lengths of samples do to a run that packs them
SampleLengths      the answer of sample_lengths: microbatch, needs, breaks_at
advise             what makes a run fit, or faster
Advice             the answer of advise: now, outcomes, table()
count_parameters   the parameters of a model, all, active and of MTP layers
Count              the answer of count_parameters
Model              an architecture, in TransformerConfig's names
Layout             GPUs, degrees of parallelism, and the split of layers over stages
Training           batch, precision, optimizer, recomputation, fusions, offloading, graphs
Gpu                a type of GPU; GPUS are those that are known
GPUS               the catalogue of GPUs
Environment        allocator and machine: what PYTORCH_CUDA_ALLOC_CONF and its likes say
EstimatorError     every refusal, in one sentence; the next three are kinds of it
ConfigError        an input that is unknown or contradicts itself
LayoutError        a layout that Megatron-Core refuses, with its rules
UnsupportedError   what is not modelled
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .device.verdict import Verdict
    from .errors import ConfigError, EstimatorError, LayoutError, UnsupportedError
    from .estimator import Estimate, Stage, estimate
    from .job.hardware import GPUS, Environment, Gpu
    from .job.layout import Layout
    from .job.model import Model
    from .job.settings_types import Settings
    from .job.training import Training
    from .job.training_job import TrainingJob
    from .modules.counts import Count, count_parameters
    from .planner.advise import Advice, advise
    from .planner.card import Card, card
    from .planner.largest import Largest, largest
    from .planner.planning import Planned, plan
    from .planner.sample_lengths import SampleLengths, sample_lengths
    from .planner.sweep import sweep
    from .timeline import Timeline

__version__ = "0.1.0"

_HOME = {
    "Count": "modules.counts",
    "count_parameters": "modules.counts",
    "Verdict": "device.verdict",
    "Timeline": "timeline",
    "Card": "planner.card",
    "card": "planner.card",
    "Planned": "planner.planning",
    "Advice": "planner.advise",
    "ConfigError": "errors",
    "EstimatorError": "errors",
    "LayoutError": "errors",
    "UnsupportedError": "errors",
    "Estimate": "estimator",
    "Stage": "estimator",
    "estimate": "estimator",
    "GPUS": "job.hardware",
    "Environment": "job.hardware",
    "Gpu": "job.hardware",
    "TrainingJob": "job.training_job",
    "Layout": "job.layout",
    "Model": "job.model",
    "Settings": "job.settings_types",
    "Training": "job.training",
    "Largest": "planner.largest",
    "largest": "planner.largest",
    "SampleLengths": "planner.sample_lengths",
    "sample_lengths": "planner.sample_lengths",
    "advise": "planner.advise",
    "plan": "planner.planning",
    "sweep": "planner.sweep",
}

__all__ = [  # noqa: RUF022
    "Advice", "Card", "ConfigError", "Count", "Environment", "Estimate", "EstimatorError", "GPUS", "Gpu", "Largest", "Layout",
    "LayoutError", "Model", "Planned", "SampleLengths", "Settings", "Stage", "Timeline", "Training", "TrainingJob",
    "UnsupportedError", "Verdict",
    "advise", "card", "count_parameters", "estimate", "largest", "plan", "sample_lengths", "sweep",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
