"""TrainingJob: one training run as the engine sees it, and the ways to make one.

TrainingJob.from_hf("Qwen/Qwen3-8B", num_gpus=8, tensor_model_parallel_size=2)
TrainingJob.from_config({"num_layers": 32, "hidden_size": 4096, ...}, num_gpus=8, vocab_size=128256)
TrainingJob.from_megatron_args({"num-layers": 32, "swiglu": True, ...}, num_gpus=8)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from ..dataclass import dataclass
from .assumption import Bound, OpenSetting, Uncounted, bound
from .constructors import Constructors
from .hardware import DEFAULT_GPU, Environment, Gpu, OpenVersion, find_gpu
from .layout import Layout
from .model import Model
from .rollout import Rollout
from .tower import unexamined
from .training import Training


@dataclass(frozen=True)
class TrainingJob(Constructors):
    """A model, a layout, training settings and hardware; all frozen, in Megatron's names."""

    model: Model
    """The architecture."""
    layout: Layout
    """GPUs, degrees of parallelism, the split of layers."""
    training: Training
    """Batch, precision, optimizer, recomputation."""
    gpu: Gpu = field(default_factory=lambda: find_gpu(DEFAULT_GPU))
    """The GPU that is judged."""
    env: Environment = field(default_factory=Environment)
    """Allocator and machine."""
    rollout: Rollout = field(default_factory=Rollout)
    """What reinforcement learning adds."""
    name: str = ""
    """The model's name."""
    source: str = ""
    """Where its configuration is from."""
    model_type: str = ""
    """The family, as config.json says."""
    num_microbatches: int = 1
    """Microbatches of a step on each pipeline."""
    batch_is_assumed: bool = False
    """Whether the global batch is not given, and as large as changes the peak."""
    open_versions: tuple[OpenVersion, ...] = ()
    """Library versions that are not given, taken as new as they can be."""
    open_settings: tuple[OpenSetting, ...] = ()
    """Settings that another way to a run decides otherwise."""
    refusal: str = ""
    """Why memory of its model is not modelled; empty where it is."""
    assumptions: tuple[str, ...] = ()
    """What was decided because it was not given."""
    warnings: tuple[str, ...] = ()
    """What is not as it seems."""
    unread: tuple[str, ...] = ()
    """Files that the run's script sources and that were not opened."""
    uncounted: tuple[Uncounted, ...] = ()
    """Arguments that decide memory and that the figures are without."""
    by_name: bool = field(default=False, compare=False)
    """Whether it is a model alone, with published recipes' habits where nothing is given."""
    of_arguments: bool = field(default=False, compare=False)
    """Whether it is of Megatron-LM's own arguments, as pretrain_gpt.py takes them."""
    given: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """The settings that the caller gave beside the model or the file."""

    def __repr__(self) -> str:
        gpus = f"{self.layout.world_size} {self.gpu.name}"
        return f"<TrainingJob {self.name or 'model'} on {gpus}: {self.layout.degrees}>"

    @property
    def unmodelled(self) -> str:
        """Why its memory is not modelled: of the model, or of a tower that it trains; empty where it is."""
        return self.refusal or unexamined(self.model.towers, self.training)

    @property
    def bound(self) -> Bound:
        """What the figures are without `uncounted`."""
        return bound(self.uncounted)

    @property
    def nothing_laid_out(self) -> bool:
        """Whether a model by its name was given neither GPUs nor a degree of parallelism."""
        return self._no_degree_given and "world_size" not in self.given

    @property
    def only_data_parallel(self) -> bool:
        """Whether a model by its name was given several GPUs, and nothing that shares it out between them."""
        return self._no_degree_given and self.layout.world_size > 1 and "world_size" in self.given

    @property
    def degrees_given(self) -> list[str]:
        """The settings of the layout that the caller gave, without the number of GPUs."""
        return [one.name for one in dataclasses.fields(Layout) if one.name in self.given and one.name != "world_size"]

    @property
    def _no_degree_given(self) -> bool:
        shards = self.training.use_megatron_fsdp or self.training.use_torch_fsdp2
        return self.by_name and not self.degrees_given and not shards and not self.rollout.has_phases

    @property
    def kernel(self) -> str:
        """The attention kernel that runs: local modules have one of their own, whatever back end TransformerEngine shall take. No fused one
        takes a mask of all pairs, which an indexer makes (Qwen3.8-Flash-Next)."""
        if not self.training.te_spec:
            return "local"
        if self.model.hc_lowrank:
            return "unfused"
        if self.training.attention_kernel is not None:
            return self.training.attention_kernel
        if self.training.params_dtype == "fp32":
            return "unfused"
        if self.gpu.capability[0] >= 10 and self.training.deterministic_mode:
            return "flash"
        return "cudnn" if self.gpu.hopper_or_later else "flash"


def alike(one: TrainingJob, other: TrainingJob) -> bool:
    """Whether two jobs differ at most in their names and in what is said of them."""
    silent = [
        dataclasses.replace(job, name="", source="", open_versions=(), open_settings=(), assumptions=(), warnings=())
        for job in (one, other)
    ]
    return silent[0] == silent[1]


PARTS = ("layout", "training", "rollout", "env")
"""What of a job settings are of, beside its model."""


def with_settings(job: TrainingJob, values: Mapping[str, Any]) -> TrainingJob:
    """The job with other settings of its layout, training, rollout and environment; those of its model are left out."""
    parts: dict[str, Any] = {}
    for part in PARTS:
        old = getattr(job, part)
        mine = {f.name: values[f.name] for f in dataclasses.fields(old) if f.name in values}
        if mine:
            parts[part] = dataclasses.replace(old, **mine)
    return dataclasses.replace(job, **parts)
