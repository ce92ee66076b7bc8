"""The library versions at which Megatron-Core or TransformerEngine changed what is kept.

A rule of the engine that asks for a version has its entry in `CHANGES`; a test reads the comparisons of the tree and holds the table to
them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .job.library_versions import CORE, TE, OpenVersion, Version
from .job.training_job import TrainingJob
from .states.optimizers import OPTIMIZERS


class VersionChange(NamedTuple):
    """A version since which something is kept in another way: what it was before, which runs it is about, and whether it is kept while
    a checkpoint is loaded."""

    setting: str
    since: Version
    before: str
    concerns: Callable[[TrainingJob], bool]
    loading: bool = False


def _fusion(job: TrainingJob) -> bool:
    return job.training.gradient_accumulation_fusion and job.training.peft == "none"


def _te_loss(job: TrainingJob) -> bool:
    return job.training.cross_entropy_loss_fusion and job.training.cross_entropy_fusion_impl == "te"


def _in_low_precision(job: TrainingJob) -> bool:
    return bool(job.training.low_precision)


def _by_matrix(job: TrainingJob) -> bool:
    return OPTIMIZERS[job.training.optimizer].by_matrix


def _core_017(job: TrainingJob) -> bool:
    t = job.training
    bare_mla = job.model.multi_latent_attention and job.model.q_lora_rank is None
    return bare_mla or t.use_megatron_fsdp or t.cuda_graph_impl != "none" or _by_matrix(job)


CHANGES = (
    VersionChange(TE, (2, 0), "torch FSDP2 gathered fp8 parameters", lambda job: job.training.use_torch_fsdp2),
    VersionChange(TE, (2, 1), "whole fp32 main parameters", lambda job: job.training.use_precision_aware_optimizer),
    VersionChange(TE, (2, 3), "a gradient of its own for each weight in backward", _fusion),
    VersionChange(TE, (2, 6), "quantized copies of inputs that are kept anyway", _in_low_precision),
    VersionChange(TE, (2, 7), "fewer userbuffers; nvfp4 copies of inputs that are kept anyway",
                  lambda job: job.training.tp_comm_overlap or job.training.low_precision == "nvfp4"),
    VersionChange(TE, (2, 13), "bf16 moments unscaled to fp32 in the step", lambda job: job.training.exp_avg_dtype == "bf16"),
    VersionChange(TE, (2, 14), "smaller cuBLAS workspaces on Blackwell", lambda job: job.gpu.capability[0] >= 10),
    VersionChange(TE, (2, 18), "the gradient of the logits written into them", _te_loss),
    VersionChange(TE, (2, 19), "the gradient of the logits allocated in backward", _te_loss),
    VersionChange(TE, (2, 20), "every key, value and output of a ring until its end", lambda job: job.layout.cp > 1),
    VersionChange(CORE, (0, 13), "probabilities that weigh the rows of experts when they return", lambda job: job.model.has_moe),
    VersionChange(CORE, (0, 14), "a gradient of its own for the output layer's weight", _fusion),
    VersionChange(CORE, (0, 15), "no rows kept where tokens are added up",
                  lambda job: job.model.has_moe and job.training.deterministic_mode),
    VersionChange(CORE, (0, 16), "rows that were sent, while what came back is un-permuted", lambda job: job.model.has_moe),
    VersionChange(CORE, (0, 17), "other norms, sharded gradients, graph buffers or owners", _core_017),
    VersionChange(CORE, (0, 18), "buffers not laid out by whole matrices", _by_matrix),
    VersionChange(CORE, (0, 19), "the embedding of an MTP stage as a matrix; Mamba's convolution behind its heads in buffers",
                  lambda job: _by_matrix(job) or "mamba" in " ".join(job.model.every_kind)),
    VersionChange(CORE, (0, 20), "Mamba's in_proj as a matrix of Muon's", _by_matrix),
    VersionChange(CORE, (0, 17), "16-bit copies of low-precision weights, surely", _in_low_precision, True),
    VersionChange(CORE, (0, 19), "16-bit copies of low-precision weights, perhaps", _in_low_precision, True),
    VersionChange(CORE, (0, 19), "FusedAdam's state twice, by Megatron-Bridge before 0.6.0",
                  lambda job: job.training.checkpoint_loader == "megatron_bridge", True),
)  # fmt: skip
"""By library, the oldest first."""


def changes_of(job: TrainingJob, one: OpenVersion, *, loading: bool) -> list[VersionChange]:
    """The changes within what a version may be that concern a run, or its loading, the newest first."""
    mine = (change for change in CHANGES if (change.setting, change.loading) == (one.setting, loading))
    held = (change for change in mine if one.low < change.since <= one.high)
    return sorted((change for change in held if change.concerns(job)), key=lambda change: change.since, reverse=True)
