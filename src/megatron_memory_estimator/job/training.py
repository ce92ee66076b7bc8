"""How the run trains: batch, precision, optimizer, recompute, fusions and library versions, in Megatron's names.

Sources: Megatron-LM `megatron/training/arguments.py`, `megatron/core/optimizer/optimizer_config.py`,
`megatron/core/distributed/distributed_data_parallel_config.py`, `megatron/core/transformer/transformer_config.py`.

How the loss is taken of the logits, which is often where a rank peaks.

Sources: Megatron-LM `megatron/core/model_parallel_config.py` (fused cross entropy); the losses of frameworks: `modules/head.py`.

What a training recomputes: the questions that declarations ask.

How checkpoints are loaded and kept: which loader, in which format.

Sources: Megatron-LM `megatron/training/arguments.py` (checkpointing), `megatron/training/checkpointing.py`; Megatron-Bridge
`training/config.py` (CheckpointConfig), `training/optim.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..dataclass import dataclass
from ..errors import ConfigError
from .choices import (
    ADAPTED,
    FUSED_LOSSES,
    KERNELS,
    LOSSES,
    PACKING,
    RECOMPUTE_MODULES,
    ROUTING,
    WORST_ROUTING,
    check_least,
    version,
)
from .deepseek_v4 import CompressedTraining
from .packing import Packing
from .settings import setting
from .tower import TowerTraining


@dataclass(frozen=True)
class Loss:
    """Settings of the loss; they are the training's."""

    cross_entropy_loss_fusion: bool = setting(False, "fused cross entropy")
    cross_entropy_fusion_impl: str = setting("native", "which fused cross entropy", choices=("native", "te", "linear"))
    logit_dtype: str | None = setting(
        None, "what the product of the output layer writes; default: as the weights", choices=("bf16", "fp32")
    )
    loss_function: str = setting(
        "cross_entropy",
        "what the loss makes of the logits: Megatron-LM's, or a framework's log-probabilities",
        choices=LOSSES,
    )
    loss_entropy: bool = setting(False, "the loss of a framework takes the entropy too, with gradient")
    loss_temperature: bool = setting(False, "logits are divided by a temperature that is not 1")
    loss_chunk_size: int | None = setting(
        None, "tokens of which a framework's loss has fp32 logits at a time; default: all"
    )

    @property
    def linear_loss(self) -> bool:
        """Whether the output layer and the cross entropy are one kernel."""
        linear = self.cross_entropy_loss_fusion and self.cross_entropy_fusion_impl == "linear"
        return linear and self.loss_function == "cross_entropy"

    @property
    def without_logits(self) -> bool:
        """Whether the logits are never whole."""
        return self.linear_loss or self.loss_function in FUSED_LOSSES


class Recomputing:
    """Answers from the settings of recomputation."""

    if TYPE_CHECKING:
        recompute_granularity: str | None
        recompute_method: str | None
        recompute_num_layers: int | None
        recompute_modules: tuple[str, ...] | None

    def recomputes_layers(self) -> bool:
        """Whether full recomputation covers all layers, uniformly."""
        return self.recompute_granularity == "full" and self.recompute_method != "block"

    def recomputes_selectively(self) -> bool:
        """Whether recomputation is selective."""
        return self.recompute_granularity == "selective"

    def recomputed_together(self) -> int:
        """Layers of a checkpoint of full recomputation, or (block) layers that have one; 0 without."""
        return max(self.recompute_num_layers or 1, 1) if self.recompute_granularity == "full" else 0

    def recomputes_whole_layers(self) -> bool:
        """Whether full recomputation covers some layers, or all."""
        return self.recompute_granularity == "full"

    def recomputes(self, module: str) -> bool:
        """Whether selective recomputation covers the module."""
        return module in self.recomputed_modules

    @property
    def recomputed_modules(self) -> tuple[str, ...]:
        """The modules of selective recomputation, which may be none (Megatron-LM `transformer_config.py`: None is core_attn)."""
        if self.recompute_granularity != "selective":
            return ()
        return ("core_attn",) if self.recompute_modules is None else self.recompute_modules


OFFLOADED_LOADS = (0, 20)
"""Megatron-Core version from which offloaded state loads without the precision-aware optimizer; 0.19.2 stops at a KeyError
(`hybrid_optimizer.py: _update_fp32_params_by_new_state` asks for fp32 copies of main parameters, which have none)."""
BRIDGE_KEEPS = (0, 19)
"""Megatron-Core version that Megatron-Bridge 0.6.0 came with, from which on it keeps loaded moments."""


@dataclass(frozen=True)
class Checkpointing:
    """Settings of checkpoints; they are the training's."""

    load_optim: bool = setting(
        True, "a checkpoint is loaded with optimizer state (--no-load-optim, --finetune: without)"
    )
    checkpoint_loader: str = setting(
        "megatron_lm",
        "who loads: Megatron-LM, which copies FusedAdam's state, or Megatron-Bridge from 0.6.0, which keeps plain fp32 moments as loaded",
        choices=("megatron_lm", "megatron_bridge"),
    )
    ckpt_format: str | None = setting(
        None, "format of checkpoints; default: torch_dist, with Megatron-FSDP fsdp_dtensor",
        choices=("torch_dist", "torch", "torch_dcp", "fsdp_dtensor"),
    )  # fmt: skip
    dist_ckpt_optim_fully_reshardable: bool = setting(
        False, "optimizer state is stored by parameter, and loads into other layouts"
    )
    ckpt_fully_parallel_save: bool = setting(
        True, "each data-parallel rank writes a part of the weights of a checkpoint; else one writes all"
    )
    async_save: bool = setting(False, "a process beside each rank writes checkpoints while training goes on")
    ckpt_fully_parallel_load: bool = setting(
        False, "each data-parallel rank reads a part of a checkpoint and sends it to the others"
    )


@dataclass(frozen=True)
class Training(Loss, Checkpointing, CompressedTraining, Packing, TowerTraining, Recomputing):
    """The settings of a run that are neither architecture nor layout."""

    seq_length: int = setting(4096, "tokens of a sequence")
    micro_batch_size: int = setting(1, "sequences of a microbatch")
    global_batch_size: int | None = setting(None, "sequences of a step; default: enough microbatches for the full peak")
    num_workers: int = setting(2, "processes of a rank's data loader")
    packing: str | None = setting(
        None, "the rule by which a framework packs samples into microbatches, for --sample-lengths", choices=PACKING
    )
    packing_tokens: int | None = setting(None, "tokens of a microbatch that it packs to; default: those of the run")
    params_dtype: str = setting("bf16", "precision of weights and activations", choices=("bf16", "fp16", "fp32"))

    transformer_impl: str = setting("transformer_engine", "kind of modules", choices=("transformer_engine", "local"))
    attention_kernel: str | None = setting(
        None,
        "attention kernel; default: local for the local spec, cuDNN on Hopper and later, else flash",
        choices=KERNELS,
        flag="attention-kernel",
    )
    deterministic_mode: bool = setting(False, "deterministic kernels")
    apply_rope_fusion: bool = setting(True, "fused RoPE")
    bias_activation_fusion: bool = setting(True, "fused bias and activation")
    bias_dropout_fusion: bool = setting(True, "fused bias, dropout and addition to the residual stream")
    use_te_activation_func: bool = setting(
        False, "activations are ops of TransformerEngine, which keep their input alone"
    )
    moe_mlp_glu_interleave_size: int | None = setting(
        None,
        "routed experts: gate and linear half alternate in blocks of so many columns; the fused activation is not used then",
    )
    use_fused_weighted_squared_relu: bool = setting(False, "experts: fused squared ReLU times probability")
    masked_softmax_fusion: bool = setting(True, "fused scale, mask and softmax")
    attention_softmax_in_fp32: bool = setting(False, "softmax of unfused attention in fp32")
    freeze_moe_router: bool = setting(False, "routers are not trained")
    gradient_accumulation_fusion: bool = setting(False, "weight gradients accumulate straight into main_grad")
    clone_scatter_output_in_embedding: bool = setting(True, "the scattered embedding output is a copy")
    scatter_embedding_sequence_parallel: bool = setting(
        True,
        "the embedding scatters its output; else the model does behind it, by a view of the whole (Megatron-Bridge)",
    )
    overlap_p2p_comm: bool = setting(True, "interleaved schedule: pipeline communication overlaps compute")
    create_attention_mask_in_dataloader: bool = setting(False, "the data loader builds a [b, 1, s, s] mask")
    compiled_gates: bool = setting(True, "torch.compile fuses the output gates of Gated DeltaNet and gated attention")
    mamba_mem_eff_path: bool = setting(True, "Mamba-2: the memory-efficient fused kernel", of="mamba")
    dsa_kernel_backend: str = setting(
        "none", "sparse attention kernel", choices=("none", "tilelang", "cudnn"), of="dsa"
    )

    recompute_granularity: str | None = setting(None, "activation recomputation", choices=("full", "selective"))
    recompute_method: str | None = setting(None, "full recomputation: which layers", choices=("uniform", "block"))
    recompute_num_layers: int | None = setting(
        None, "uniform: layers per checkpoint; block: checkpointed layers per model chunk"
    )
    recompute_modules: tuple[str, ...] | None = setting(
        None, "selective recomputation: modules; default core_attn", choices=RECOMPUTE_MODULES, kind="list"
    )
    defer_embedding_wgrad_compute: bool = setting(
        False, "weight gradients of the output layer after the last backward; its inputs and logit gradients are kept"
    )
    wgrad_deferral_limit: int = setting(0, "microbatches whose output-layer gradient is deferred; 0: all")
    fp8: str | None = setting(
        None, "fp8 format of TransformerEngine linears", choices=("hybrid", "e4m3"), flag="fp8-format"
    )
    fp8_recipe: str = setting(
        "delayed", "fp8 recipe; even without fp8 it decides who owns the precision-aware optimizer's masters",
        choices=("delayed", "tensorwise", "blockwise", "mxfp8"),
    )  # fmt: skip
    fp8_param_gather: bool = setting(False, "weights are kept and gathered in fp8")
    fp4: str | None = setting(None, "fp4 format of TransformerEngine linears", choices=("e2m1",), flag="fp4-format")
    fp4_param_gather: bool = setting(False, "weights are kept and gathered in fp4")
    first_last_layers_bf16: bool = setting(False, "the first and last layers stay in bf16")
    num_layers_at_start_in_bf16: int = setting(1, "first layers in bf16, with first_last_layers_bf16")
    num_layers_at_end_in_bf16: int = setting(1, "last layers in bf16, with first_last_layers_bf16")
    fp8_dot_product_attention: bool = setting(False, "attention in fp8")
    activation_func_fp8_input_store: bool = setting(False, "the input of SwiGLU is kept in fp8")
    disable_parameter_transpose_cache: bool = setting(False, "quantized weights are made anew for each microbatch")
    reuse_grad_buf_for_mxfp8_param_ag: bool = setting(False, "mxfp8 weights are gathered through the gradient buffer")
    moe_router_padding_for_quantization: bool = setting(
        False, "the routing map is padded for fp8 or fp4, not the rows", of="moe"
    )

    tp_comm_overlap: bool = setting(
        False, "tensor-parallel communication of attention and dense MLP overlaps their GEMMs, in userbuffers"
    )
    distribute_saved_activations: bool = setting(False, "full recomputation: the kept input is sharded over tp")

    moe_token_dispatcher_type: str = setting(
        "allgather", "MoE token dispatcher", choices=("allgather", "alltoall", "flex"), of="moe"
    )
    moe_flex_dispatcher_backend: str = setting(
        "deepep", "backend of the flex dispatcher", choices=("deepep", "hybridep"), of="moe"
    )
    moe_grouped_gemm: bool = setting(False, "experts in grouped GEMMs", of="moe")
    moe_use_grouped_tensor: bool = setting(
        False, "experts' weights and rows are TransformerEngine grouped tensors", of="moe"
    )
    use_transformer_engine_op_fuser: bool = setting(
        False, "MLPs are made of TransformerEngine ops; mxfp8 and nvfp4 experts become one fused op"
    )
    moe_expert_rank_capacity_factor: float | None = setting(
        None, "HybridEP: the experts of a rank always get this times the mean rows", of="moe"
    )
    moe_paged_stash: bool = setting(False, "what experts keep is moved into one paged buffer", of="moe")
    moe_paged_stash_buffer_size_factor_cuda: float = setting(
        1.1, "size of the paged buffer relative to what balanced routing keeps", of="moe"
    )
    moe_paged_stash_buffer_size_factor_cpu: float = setting(0.0, "the same of a buffer in host memory", of="moe")
    moe_permute_fusion: bool = setting(False, "fused permutation", of="moe")
    moe_router_fusion: bool = setting(
        False, "routing and the balancing loss in one kernel each (TransformerEngine >= 2.7)", of="moe"
    )
    moe_router_dtype: str | None = setting(
        None, "dtype of the router's logits and probabilities; default: its input's", choices=("fp32", "fp64"), of="moe"
    )
    moe_expert_capacity_factor: float | None = setting(
        None, "tokens per expert are capped at this times the mean", of="moe"
    )
    moe_pad_expert_input_to_capacity: bool = setting(False, "expert inputs are padded to the capacity", of="moe")
    moe_shared_expert_overlap: bool = setting(False, "shared experts overlap the dispatcher's communication", of="moe")
    peft: str = setting(
        "none", "parameter-efficient fine-tuning: the base is frozen, adapters are trained",
        choices=("none", "lora", "canonical_lora", "dora"),
    )  # fmt: skip
    peft_dim: int = setting(32, "rank of the adapters")
    peft_target_modules: tuple[str, ...] = setting(
        (), "linears with an adapter; default linear_qkv, linear_proj, linear_fc1, linear_fc2", kind="list", choices=ADAPTED,
    )  # fmt: skip
    peft_experts: str = setting(
        "shared", "adapters of grouped experts: one for all experts of a rank, or one linear_in with a linear_out for each expert",
        choices=("shared", "linear_out_each"), of="moe",
    )  # fmt: skip
    cpu_offloading_num_layers: int = setting(0, "layers whose activations are offloaded to host memory")
    cpu_offloading_double_buffering: bool = setting(
        False, "layer-level offloading: two layers on their way instead of one"
    )
    fine_grained_activation_offloading: bool = setting(False, "activations of modules are offloaded to host memory")
    offload_modules: tuple[str, ...] = setting(
        (), "modules whose activations are offloaded", kind="list",
        choices=("attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act", "fused_group_mlp"),
    )  # fmt: skip
    min_offloaded_tensor_size: int = setting(2**20, "smallest tensor that fine-grained offloading takes, in elements")
    activation_offload_fraction: float = setting(1.0, "fine-grained offloading: share of the layers, the first ones")
    optimizer_cpu_offload: bool = setting(False, "optimizer state and step in host memory")
    optimizer_offload_fraction: float = setting(1.0, "share of the optimizer state that is offloaded")
    chunked_optimizer_state_offload: bool = setting(
        False, "optimizer state in host memory between steps, stepped on the GPU in chunks"
    )
    optimizer_state_offload_chunk_size_mb: int | None = setting(
        None, "chunked_optimizer_state_offload: MB of a chunk, two of which are on the GPU; default, or 0: all at once"
    )
    optimizer_state_offload_fraction: float = setting(
        1.0, "chunked_optimizer_state_offload: share of the optimizer state that is offloaded"
    )
    cuda_graph_impl: str = setting(
        "none", "CUDA graphs: of layers, or of the whole iteration",
        choices=("none", "local", "transformer_engine", "full_iteration"),
    )  # fmt: skip
    cuda_graph_modules: tuple[str, ...] = setting(
        (), "what is captured of a layer; default all of it", kind="list",
        choices=("attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba"),
    )  # fmt: skip
    cuda_graph_warmup_steps: int = setting(3, "steps without CUDA graphs at the start")
    overlap_moe_expert_parallel_comm: bool = setting(
        False, "all-to-all overlap: one microbatch's forward runs beside another's backward"
    )
    delay_wgrad_compute: bool = setting(False, "all-to-all overlap: weight gradients after the backward of their part")
    routing_phase: str = setting(
        "pretraining",
        "dropless MoE: what typical routing, and the range around it, is taken from",
        choices=tuple(ROUTING),
    )
    router_imbalance: float | None = setting(
        None, "rows of the busiest expert-parallel rank relative to balanced routing (dropless MoE); or balanced, worst; "
        "default: typical of routing_phase",
        words={"balanced": 1.0, "worst": WORST_ROUTING}, of="moe",
    )  # fmt: skip

    muon_fp32_matmul_prec: str = setting(
        "medium", "muon: precision of its matrix products; medium has 16-bit matrices", choices=("medium", "high", "highest")
    )  # fmt: skip
    muon_nesterov: bool = setting(False, "muon: Nesterov's momentum")
    muon_split_qkv: bool = setting(True, "muon: query, key and value are orthogonalized apart")
    muon_tp_mode: str | None = setting(
        None,
        "muon: what tensor-parallel ranks orthogonalize: their own part, the whole matrix each, or the whole matrix together; default: by "
        "Megatron-Core, blockwise before 0.20",
        choices=("blockwise", "duplicated", "distributed"),
    )
    optimizer: str = setting("adam", "optimizer", choices=("adam", "sgd", "muon", "lion"))
    sgd_momentum: float = setting(0.9, "SGD momentum; 0 keeps no state")
    use_layer_wise_param_layout: bool = setting(
        True, "Muon: whole parameters are packed into one shard of the buffers per rank"
    )
    data_parallel_rank: int | None = setting(
        None, "Muon's layer-wise optimizer: the rank of the data-parallel group to show; default: the fullest"
    )
    use_distributed_optimizer: bool = setting(False, "optimizer state is sharded over data-parallel ranks")
    accumulate_allreduce_grads_in_fp32: bool | None = setting(None, "fp32 gradients; default: with bf16")
    grad_reduce_in_bf16: bool = setting(False, "bf16 gradients")
    use_precision_aware_optimizer: bool = setting(False, "optimizer state in the dtypes below")
    main_grads_dtype: str = setting("fp32", "precision-aware: gradients", choices=("fp32", "bf16"))
    main_params_dtype: str = setting("fp32", "precision-aware: main parameters", choices=("fp32", "fp16"))
    exp_avg_dtype: str = setting("fp32", "precision-aware: first moment", choices=("fp32", "fp16", "bf16", "fp8"))
    exp_avg_sq_dtype: str = setting("fp32", "precision-aware: second moment", choices=("fp32", "fp16", "bf16", "fp8"))
    store_param_remainders: bool = setting(True, "precision-aware: main parameters as int16 remainders of bf16 weights")
    use_megatron_fsdp: bool = setting(False, "Megatron-FSDP instead of DDP")
    megatron_fsdp_version: int = setting(1, "Megatron-FSDP: which implementation, 1 or 2")
    data_parallel_sharding_strategy: str = setting(
        "optim_grads_params", "Megatron-FSDP: what is sharded",
        choices=("no_shard", "optim", "optim_grads", "optim_grads_params"),
    )  # fmt: skip
    outer_dp_sharding_strategy: str = setting(
        "no_shard", "Megatron-FSDP: what is sharded over optimizer instances too (HSDP)", choices=("no_shard", "optim")
    )
    init_model_with_meta_device: bool = setting(
        False, "fully sharded: the model is built on the meta device, and not whole on the GPU first"
    )
    use_cpu_initialization: bool = setting(False, "torch FSDP2: the model is built in host memory")
    keep_fp8_transpose_cache: bool = setting(
        False, "Megatron-FSDP: fp8 weights keep their copies by columns, whole, between the passes of their layers"
    )
    fsdp_double_buffer: bool = setting(False, "Megatron-FSDP: gathered weights and gradients in two fixed buffers each")
    nccl_ub: bool = setting(False, "gradient and weight buffers are registered with NCCL", flag="use-nccl-ub")
    suggested_communication_unit_size: int | None = setting(None, "Megatron-FSDP: elements of a communication unit")
    megatron_fsdp_main_grads_dtype: str = setting("auto", "Megatron-FSDP: gradients", choices=("auto", "fp32", "bf16"))
    megatron_fsdp_main_params_dtype: str = setting(
        "fp32", "Megatron-FSDP: main weights; auto: none", choices=("fp32", "auto")
    )
    use_torch_fsdp2: bool = setting(False, "torch FSDP2 instead of DDP")
    torch_fsdp2_reshard_after_forward: bool = setting(
        True, "torch FSDP2: weights are sharded again after their forward"
    )
    overlap_grad_reduce: bool = setting(False, "gradient reduction overlaps the backward (buckets)")
    overlap_param_gather: bool = setting(False, "parameter all-gather overlaps the forward")
    overlap_param_gather_with_optimizer_step: bool = setting(
        False, "the first chunk has an optimizer of its own, which steps before that of the others"
    )
    ddp_bucket_size: int | None = setting(None, "elements of a gradient bucket")
    ddp_num_buckets: int | None = setting(None, "number of gradient buckets")
    ddp_pad_buckets_for_high_nccl_busbw: bool = setting(False, "buckets are padded to multiples of 2**16")

    apex: bool = setting(True, "NVIDIA Apex is installed: its LayerNorm in the local spec, not PyTorch's")
    transformer_engine_version: str = setting("2.20", "TransformerEngine version")
    megatron_core_version: str = setting("0.19", "Megatron-Core version")

    @property
    def base_frozen(self) -> bool:
        """Whether the language model is frozen: beside its adapters, or behind towers that are trained alone."""
        return self.peft != "none" or self.freeze_language_model

    def __post_init__(self) -> None:
        check_least(self)
        if not 0 <= self.sgd_momentum <= 1:
            raise ConfigError(f"sgd_momentum={self.sgd_momentum} must be between 0 and 1")
        if self.router_imbalance is not None and self.router_imbalance < 1:
            raise ConfigError(f"router_imbalance={self.router_imbalance} must be at least 1, which is balanced routing")
        _ = self.te, self.mcore

    @property
    def te(self) -> tuple[int, int]:
        """TransformerEngine version as (major, minor)."""
        return version("transformer_engine_version", self.transformer_engine_version)

    @property
    def mcore(self) -> tuple[int, int]:
        """Megatron-Core version as (major, minor)."""
        return version("megatron_core_version", self.megatron_core_version)

    @property
    def low_precision(self) -> str:
        """Name of the fp8 or fp4 recipe in use, "" for none."""
        return "nvfp4" if self.fp4 else self.fp8_recipe if self.fp8 else ""

    @property
    def low_precision_weights(self) -> bool:
        """Whether quantized weights are what the optimizer updates, instead of wider weights with quantized copies."""
        gathered = self.fp8_param_gather and not self.fp8_param_gather_is_off
        return bool(self.fp8 and gathered) or bool(self.fp4 and self.fp4_param_gather)

    @property
    def fp8_param_gather_is_off(self) -> bool:
        """Whether torch FSDP2 turns it off, from TransformerEngine 2.0 on (Megatron-LM `arguments.py`, validate_args)."""
        return self.fp8_param_gather and self.use_torch_fsdp2 and self.te >= (2, 0)

    @property
    def double_buffered(self) -> bool:
        """Whether Megatron-FSDP gathers into fixed buffers, which registering them with NCCL turns on (Megatron-LM `arguments.py`)."""
        return self.use_megatron_fsdp and (self.fsdp_double_buffer or self.nccl_ub)

    @property
    def hybridep(self) -> bool:
        """Whether tokens are dispatched by HybridEP."""
        return (self.moe_token_dispatcher_type, self.moe_flex_dispatcher_backend) == ("flex", "hybridep")

    @property
    def grouped_tensors(self) -> bool:
        """Whether every expert's rows are padded for TransformerEngine's grouped tensors."""
        return self.moe_use_grouped_tensor or self.use_transformer_engine_op_fuser

    @property
    def te_spec(self) -> bool:
        """Whether modules come from TransformerEngine."""
        return self.transformer_impl == "transformer_engine"

    @property
    def grad_dtype(self) -> str:
        """Dtype of the gradient buffers (Megatron-LM `megatron/training/arguments.py`, state_dtype rules)."""
        if self.params_dtype == "fp32":
            return "fp32"
        if self.use_precision_aware_optimizer and self.main_grads_dtype == "bf16":
            return "bf16"
        if self.grad_reduce_in_bf16:
            return "bf16"
        in_fp32 = self.accumulate_allreduce_grads_in_fp32
        if in_fp32 is None:
            in_fp32 = self.params_dtype == "bf16"
        return "fp32" if in_fp32 else self.params_dtype

    @property
    def fixed_expert_rows(self) -> bool:
        """Whether experts have as many rows whatever the router does: those of a capacity that is padded to, or of a rank's."""
        padded = self.moe_expert_capacity_factor is not None and self.moe_pad_expert_input_to_capacity
        return padded or self.moe_expert_rank_capacity_factor is not None

    @property
    def counts_expert_rows(self) -> bool:
        """Whether the CPU waits for the number of rows of its experts before it goes on (Megatron-LM `moe/token_dispatcher.py`:
        _maybe_dtoh_and_synchronize, `moe/fused_a2a.py`: non_blocking)."""
        return not (self.fixed_expert_rows or self.moe_paged_stash or self.cuda_graph_impl == "full_iteration")
