"""The layout: the degrees of parallelism and how layers are split over pipeline stages, in Megatron's names.

Sources: Megatron-LM `megatron/core/model_parallel_config.py`, `megatron/core/parallel_state.py`
(initialize_model_parallel), `megatron/core/transformer/transformer_config.py` (pipeline split).
"""

from __future__ import annotations

from functools import cached_property
from math import lcm

from ..dataclass import dataclass
from .settings import setting

SHORT = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "ep": "expert_model_parallel_size",
    "cp": "context_parallel_size",
    "etp": "expert_tensor_parallel_size",
    "vpp": "virtual_pipeline_model_parallel_size",
}
"""Short names of degrees."""


def fewest_gpus(dense: int, experts: int, pp: int) -> int:
    """GPUs over which both grids divide: stages of `dense` ranks (tp times cp), and of `experts` (etp times ep; 1 without experts)."""
    return lcm(dense, experts) * pp


@dataclass(frozen=True)
class Layout:
    """The parallel layout of a run. The short properties `tp`, `pp`, ... are the degrees that tensors are sharded by."""

    world_size: int = setting(1, "GPUs of the run", flag="num-gpus")
    tensor_model_parallel_size: int = setting(1, "tensor parallel size (tp)")
    pipeline_model_parallel_size: int = setting(1, "pipeline parallel size (pp)")
    context_parallel_size: int = setting(1, "context parallel size (cp)")
    expert_model_parallel_size: int = setting(1, "expert parallel size (ep)", of="moe")
    expert_tensor_parallel_size: int | None = setting(
        None, "expert tensor parallel size (etp); Megatron's default: tp", of="moe"
    )
    tensor_parallel_num_weight_shards: int | None = setting(
        None, "shards of every weight: those of tp, each cut again and gathered before its use (GTP); default: tp"
    )
    expert_tensor_parallel_num_weight_shards: int | None = setting(
        None, "the same of the weights of routed experts; default: etp", of="moe"
    )
    sequence_parallel: bool = setting(False, "sequence parallel")
    cp_comm_type: tuple[str, ...] = setting(
        ("p2p",), "context parallel communication", choices=("p2p", "a2a", "all_gather", "a2a+p2p"), kind="list"
    )
    hierarchical_context_parallel_sizes: tuple[int, ...] | None = setting(
        None, "a2a+p2p: the a2a size and the p2p size", kind="ints"
    )
    virtual_pipeline_model_parallel_size: int | None = setting(
        None, "model chunks per pipeline rank (vpp)", flag="num-virtual-stages-per-pipeline-rank"
    )
    num_layers_per_virtual_pipeline_stage: int | None = setting(
        None, "layers per model chunk: the other spelling of vpp"
    )
    num_layers_in_first_pipeline_stage: int | None = setting(
        None, "layers of the first pipeline stage", flag="decoder-first-pipeline-num-layers"
    )
    num_layers_in_last_pipeline_stage: int | None = setting(
        None, "layers of the last pipeline stage", flag="decoder-last-pipeline-num-layers"
    )
    account_for_embedding_in_pipeline_split: bool = setting(False, "the embedding counts as a layer in the split")
    account_for_loss_in_pipeline_split: bool = setting(False, "the loss counts as a layer in the split")
    pipeline_model_parallel_layout: str | None = setting(
        None, "layers of each stage, such as Et*3|(tt|)*29m|L (E embedding, t layer, m MTP, L loss)"
    )
    microbatch_group_size_per_vp_stage: int | None = setting(
        None,
        "microbatches that run through one chunk before the next; default: pp",
        flag="microbatch-group-size-per-virtual-pipeline-stage",
    )
    num_distributed_optimizer_instances: int = setting(1, "replicas of the distributed optimizer's shards")

    @property
    def tp(self) -> int:
        """Tensor parallel size."""
        return self.tensor_model_parallel_size

    @property
    def pp(self) -> int:
        """Pipeline parallel size."""
        return self.pipeline_model_parallel_size

    @property
    def cp(self) -> int:
        """Context parallel size."""
        return self.context_parallel_size

    @property
    def ep(self) -> int:
        """Expert parallel size."""
        return self.expert_model_parallel_size

    @property
    def etp(self) -> int:
        """Expert tensor parallel size."""
        return self.tp if self.expert_tensor_parallel_size is None else self.expert_tensor_parallel_size

    @property
    def sp(self) -> int:
        """tp with sequence parallelism, else 1."""
        return self.tp if self.sequence_parallel else 1

    @property
    def gtp(self) -> int:
        """Ranks that share each tensor-parallel slice of a weight (`gtp_weight_remat_size`)."""
        shards = self.tensor_parallel_num_weight_shards
        return 1 if shards is None else max(shards // self.tp, 1)

    @property
    def egtp(self) -> int:
        """The same of the weights of routed experts (`expert_gtp_weight_remat_size`)."""
        shards = self.expert_tensor_parallel_num_weight_shards
        return 1 if shards is None else max(shards // self.etp, 1)

    @property
    def shards_weights(self) -> bool:
        """Whether weights are cut further than tensor parallelism does (generalized tensor parallelism)."""
        return self.gtp > 1 or self.egtp > 1

    @cached_property
    def dp(self) -> int:
        """Data parallel size of the dense part, without cp."""
        return self.world_size // (self.tp * self.gtp * self.pp * self.cp)

    @property
    def readers(self) -> int:
        """Ranks that read different samples: those of data parallelism, times those that share a slice of weights."""
        return self.dp * self.gtp

    @cached_property
    def expert_dp(self) -> int:
        """Data parallel size of the experts."""
        return self.world_size // (self.etp * self.egtp * self.ep * self.pp)

    @property
    def degrees(self) -> str:
        """Its degrees above 1 in short, such as `tp 4, pp 2, dp 8`."""
        found = {
            "tp": self.tp,
            "gtp": self.gtp,
            "pp": self.pp,
            "vpp": self.virtual_pipeline_model_parallel_size or 1,
            "cp": self.cp,
            "ep": self.ep,
            "etp": self.etp if self.ep > 1 else 1,
            "egtp": self.egtp,
            "dp": self.dp,
        }
        return ", ".join(f"{name} {degree}" for name, degree in found.items() if degree > 1) or "one GPU"

    def shards(self, *, expert: bool) -> int:
        """Ranks over which the state of dense or of expert parameters is sharded."""
        return self.expert_shards if expert else self.dense_shards

    @property
    def dense_shards(self) -> int:
        """Ranks that share the optimizer state of a dense parameter (cp included)."""
        return self.dp * self.cp // self.num_distributed_optimizer_instances

    @property
    def expert_shards(self) -> int:
        """Ranks that share the optimizer state of an expert parameter."""
        return self.expert_dp // self.num_distributed_optimizer_instances
