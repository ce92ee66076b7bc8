"""Settings as keywords, typed, so that an editor completes them and a type checker refuses what is none. Generated.

Made by scripts/settings_types.py from the fields of Layout, Training, Rollout, Model and Environment; not edited by hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

from .hardware import Environment

# fmt: off
CpCommType = Literal["p2p", "a2a", "all_gather", "a2a+p2p"]
LossFunction = Literal["cross_entropy", "slime", "verl", "nemo_rl", "roll", "swift", "skyrl", "fused", "skyrl_fused", "nemo_rl_fused"]
Packing = Literal[
    "verl", "verl_0_9_1", "slime", "miles", "slime_legacy", "nemo_rl", "nemo_rl_dynamic", "roll", "areal", "areal_kk", "skyrl",
    "skyrl_sft", "megatron_core", "megatron_lm_sft", "ms_swift", "ms_swift_sequential"
]
RecomputeModules = Literal["core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts", "gdn_norm_out", "mhc"]
PeftTargetModules = Literal[
    "linear_qkv", "linear_proj", "linear_fc1", "linear_fc2", "linear_q", "linear_k", "linear_v", "linear_fc1_up", "linear_fc1_gate",
    "linear_q_proj", "linear_q_down_proj", "linear_q_up_proj", "linear_kv_down_proj", "linear_kv_up_proj", "in_proj", "out_proj",
    "fc1_latent_proj", "fc2_latent_proj", "eh_proj", "o_proj", "q_a_proj", "kv_a_proj_with_mqa"
]
OffloadModules = Literal["attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act", "fused_group_mlp"]
CudaGraphModules = Literal["attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba"]
RolloutOffload = Literal["weights", "gradients", "optimizer"]
LogProbOffload = Literal["weights", "gradients", "optimizer"]
MoeRouterLoadBalancingType = Literal["aux_loss", "seq_aux_loss", "global_aux_loss", "sinkhorn", "none", "quantile"]
Door = Literal[
    "megatron-lm", "bridge", "verl", "verl-0.8", "nemo-rl", "slime", "skyrl", "areal", "roll", "chatlearn", "ms-swift", "llama-factory",
    "primus"
]
Phases = Literal["training", "first_step", "load", "save", "build", "generation", "log_probs", "reference", "weight_sync"]


class Settings(TypedDict, total=False):
    """Every setting by Megatron's name, the degrees by their short names too. What is not given is decided and said.

    `megatron-memory estimate --help-all` and docs/reference/settings.md have them by topic, with their defaults.
    """

    # layout
    world_size: int  # GPUs of the run
    tensor_model_parallel_size: int  # tensor parallel size (tp)
    pipeline_model_parallel_size: int  # pipeline parallel size (pp)
    context_parallel_size: int  # context parallel size (cp)
    expert_model_parallel_size: int  # expert parallel size (ep)
    expert_tensor_parallel_size: int | None  # expert tensor parallel size (etp); Megatron's default: tp
    tensor_parallel_num_weight_shards: int | None  # shards of every weight: those of tp, each cut again and gathered before its use ...
    expert_tensor_parallel_num_weight_shards: int | None  # the same of the weights of routed experts; default: etp
    sequence_parallel: bool  # sequence parallel
    cp_comm_type: CpCommType | Sequence[CpCommType]  # context parallel communication
    hierarchical_context_parallel_sizes: Sequence[int] | None  # a2a+p2p: the a2a size and the p2p size
    virtual_pipeline_model_parallel_size: int | None  # model chunks per pipeline rank (vpp)
    num_layers_per_virtual_pipeline_stage: int | None  # layers per model chunk: the other spelling of vpp
    num_layers_in_first_pipeline_stage: int | None  # layers of the first pipeline stage
    num_layers_in_last_pipeline_stage: int | None  # layers of the last pipeline stage
    account_for_embedding_in_pipeline_split: bool  # the embedding counts as a layer in the split
    account_for_loss_in_pipeline_split: bool  # the loss counts as a layer in the split
    pipeline_model_parallel_layout: str | None  # layers of each stage, such as Et*3|(tt|)*29m|L (E embedding, t layer, m MTP, L loss)
    microbatch_group_size_per_vp_stage: int | None  # microbatches that run through one chunk before the next; default: pp
    num_distributed_optimizer_instances: int  # replicas of the distributed optimizer's shards

    # training
    freeze_language_model: bool  # towers: the language model behind them is not trained
    image_tokens: int  # vision tower: tokens of a sequence that stand for images
    images: str  # vision tower: images of a sequence, as 4x1024x1024 (how many, height, width); several with +
    audio_tokens: int  # audio tower: tokens of a sequence that stand for sound
    freeze_vision_model: bool  # vision tower: its layers are not trained
    freeze_vision_projection: bool  # vision tower: what leads from it into the language model is not trained
    freeze_audio_model: bool  # audio tower: it is not trained
    vit_gradient_checkpointing: bool  # towers of Qwen3-Omni: their layers run again in the backward
    sequence_packing_scheduler: Literal["dp_balanced", "default_dynamic_cp"] | None  # who packs samples into rows without padding: a ...
    max_seqlen_per_dp_cp_rank: int | None  # sequence_packing_scheduler: tokens of a row on a rank; default: seq_length / ...
    dynamic_context_parallel: bool  # as many context-parallel ranks for a sample as its length needs
    min_dynamic_context_parallel_size: int  # dynamic_context_parallel: ranks of the shortest sample
    use_fused_mhc: bool  # hyper-connections: fused kernels
    mhc_recompute_layer_num: int | None  # recompute_modules mhc: layers that come back together; default: those of a chunk
    dsa_indexer_use_sparse_loss: bool  # sparse attention: the indexer's loss of its own keys
    load_optim: bool  # a checkpoint is loaded with optimizer state (--no-load-optim, --finetune: without)
    checkpoint_loader: Literal["megatron_lm", "megatron_bridge"]  # who loads: Megatron-LM, which copies FusedAdam's state, or Megatron- ...
    ckpt_format: Literal["torch_dist", "torch", "torch_dcp", "fsdp_dtensor"] | None  # format of checkpoints; default: torch_dist, with ...
    dist_ckpt_optim_fully_reshardable: bool  # optimizer state is stored by parameter, and loads into other layouts
    ckpt_fully_parallel_save: bool  # each data-parallel rank writes a part of the weights of a checkpoint; else one writes all
    async_save: bool  # a process beside each rank writes checkpoints while training goes on
    ckpt_fully_parallel_load: bool  # each data-parallel rank reads a part of a checkpoint and sends it to the others
    cross_entropy_loss_fusion: bool  # fused cross entropy
    cross_entropy_fusion_impl: Literal["native", "te", "linear"]  # which fused cross entropy
    logit_dtype: Literal["bf16", "fp32"] | None  # what the product of the output layer writes; default: as the weights
    loss_function: LossFunction  # what the loss makes of the logits: Megatron-LM's, or a framework's log-probabilities
    loss_entropy: bool  # the loss of a framework takes the entropy too, with gradient
    loss_temperature: bool  # logits are divided by a temperature that is not 1
    loss_chunk_size: int | None  # tokens of which a framework's loss has fp32 logits at a time; default: all
    seq_length: int  # tokens of a sequence
    micro_batch_size: int  # sequences of a microbatch
    global_batch_size: int | None  # sequences of a step; default: enough microbatches for the full peak
    num_workers: int  # processes of a rank's data loader
    packing: Packing | None  # the rule by which a framework packs samples into microbatches, for --sample-lengths
    packing_tokens: int | None  # tokens of a microbatch that it packs to; default: those of the run
    params_dtype: Literal["bf16", "fp16", "fp32"]  # precision of weights and activations
    transformer_impl: Literal["transformer_engine", "local"]  # kind of modules
    attention_kernel: Literal["flash", "cudnn", "unfused", "local"] | None  # attention kernel; default: local for the local spec, cuDNN ...
    deterministic_mode: bool  # deterministic kernels
    apply_rope_fusion: bool  # fused RoPE
    bias_activation_fusion: bool  # fused bias and activation
    bias_dropout_fusion: bool  # fused bias, dropout and addition to the residual stream
    use_te_activation_func: bool  # activations are ops of TransformerEngine, which keep their input alone
    moe_mlp_glu_interleave_size: int | None  # routed experts: gate and linear half alternate in blocks of so many columns; the fused ...
    use_fused_weighted_squared_relu: bool  # experts: fused squared ReLU times probability
    masked_softmax_fusion: bool  # fused scale, mask and softmax
    attention_softmax_in_fp32: bool  # softmax of unfused attention in fp32
    freeze_moe_router: bool  # routers are not trained
    gradient_accumulation_fusion: bool  # weight gradients accumulate straight into main_grad
    clone_scatter_output_in_embedding: bool  # the scattered embedding output is a copy
    scatter_embedding_sequence_parallel: bool  # the embedding scatters its output; else the model does behind it, by a view of the ...
    overlap_p2p_comm: bool  # interleaved schedule: pipeline communication overlaps compute
    create_attention_mask_in_dataloader: bool  # the data loader builds a [b, 1, s, s] mask
    compiled_gates: bool  # torch.compile fuses the output gates of Gated DeltaNet and gated attention
    mamba_mem_eff_path: bool  # Mamba-2: the memory-efficient fused kernel
    dsa_kernel_backend: Literal["none", "tilelang", "cudnn"]  # sparse attention kernel
    recompute_granularity: Literal["full", "selective"] | None  # activation recomputation
    recompute_method: Literal["uniform", "block"] | None  # full recomputation: which layers
    recompute_num_layers: int | None  # uniform: layers per checkpoint; block: checkpointed layers per model chunk
    recompute_modules: RecomputeModules | Sequence[RecomputeModules] | None  # selective recomputation: modules; default core_attn
    defer_embedding_wgrad_compute: bool  # weight gradients of the output layer after the last backward; its inputs and logit gradients ...
    wgrad_deferral_limit: int  # microbatches whose output-layer gradient is deferred; 0: all
    fp8: Literal["hybrid", "e4m3"] | None  # fp8 format of TransformerEngine linears
    fp8_recipe: Literal["delayed", "tensorwise", "blockwise", "mxfp8"]  # fp8 recipe; even without fp8 it decides who owns the ...
    fp8_param_gather: bool  # weights are kept and gathered in fp8
    fp4: Literal["e2m1"] | None  # fp4 format of TransformerEngine linears
    fp4_param_gather: bool  # weights are kept and gathered in fp4
    first_last_layers_bf16: bool  # the first and last layers stay in bf16
    num_layers_at_start_in_bf16: int  # first layers in bf16, with first_last_layers_bf16
    num_layers_at_end_in_bf16: int  # last layers in bf16, with first_last_layers_bf16
    fp8_dot_product_attention: bool  # attention in fp8
    activation_func_fp8_input_store: bool  # the input of SwiGLU is kept in fp8
    disable_parameter_transpose_cache: bool  # quantized weights are made anew for each microbatch
    reuse_grad_buf_for_mxfp8_param_ag: bool  # mxfp8 weights are gathered through the gradient buffer
    moe_router_padding_for_quantization: bool  # the routing map is padded for fp8 or fp4, not the rows
    tp_comm_overlap: bool  # tensor-parallel communication of attention and dense MLP overlaps their GEMMs, in userbuffers
    distribute_saved_activations: bool  # full recomputation: the kept input is sharded over tp
    moe_token_dispatcher_type: Literal["allgather", "alltoall", "flex"]  # MoE token dispatcher
    moe_flex_dispatcher_backend: Literal["deepep", "hybridep"]  # backend of the flex dispatcher
    moe_grouped_gemm: bool  # experts in grouped GEMMs
    moe_use_grouped_tensor: bool  # experts' weights and rows are TransformerEngine grouped tensors
    use_transformer_engine_op_fuser: bool  # MLPs are made of TransformerEngine ops; mxfp8 and nvfp4 experts become one fused op
    moe_expert_rank_capacity_factor: float | None  # HybridEP: the experts of a rank always get this times the mean rows
    moe_paged_stash: bool  # what experts keep is moved into one paged buffer
    moe_paged_stash_buffer_size_factor_cuda: float  # size of the paged buffer relative to what balanced routing keeps
    moe_paged_stash_buffer_size_factor_cpu: float  # the same of a buffer in host memory
    moe_permute_fusion: bool  # fused permutation
    moe_router_fusion: bool  # routing and the balancing loss in one kernel each (TransformerEngine >= 2.7)
    moe_router_dtype: Literal["fp32", "fp64"] | None  # dtype of the router's logits and probabilities; default: its input's
    moe_expert_capacity_factor: float | None  # tokens per expert are capped at this times the mean
    moe_pad_expert_input_to_capacity: bool  # expert inputs are padded to the capacity
    moe_shared_expert_overlap: bool  # shared experts overlap the dispatcher's communication
    peft: Literal["none", "lora", "canonical_lora", "dora"]  # parameter-efficient fine-tuning: the base is frozen, adapters are trained
    peft_dim: int  # rank of the adapters
    peft_target_modules: PeftTargetModules | Sequence[PeftTargetModules]  # linears with an adapter; default linear_qkv, linear_proj, ...
    peft_experts: Literal["shared", "linear_out_each"]  # adapters of grouped experts: one for all experts of a rank, or one linear_in ...
    cpu_offloading_num_layers: int  # layers whose activations are offloaded to host memory
    cpu_offloading_double_buffering: bool  # layer-level offloading: two layers on their way instead of one
    fine_grained_activation_offloading: bool  # activations of modules are offloaded to host memory
    offload_modules: OffloadModules | Sequence[OffloadModules]  # modules whose activations are offloaded
    min_offloaded_tensor_size: int  # smallest tensor that fine-grained offloading takes, in elements
    activation_offload_fraction: float  # fine-grained offloading: share of the layers, the first ones
    optimizer_cpu_offload: bool  # optimizer state and step in host memory
    optimizer_offload_fraction: float  # share of the optimizer state that is offloaded
    chunked_optimizer_state_offload: bool  # optimizer state in host memory between steps, stepped on the GPU in chunks
    optimizer_state_offload_chunk_size_mb: int | None  # chunked_optimizer_state_offload: MB of a chunk, two of which are on the GPU; ...
    optimizer_state_offload_fraction: float  # chunked_optimizer_state_offload: share of the optimizer state that is offloaded
    cuda_graph_impl: Literal["none", "local", "transformer_engine", "full_iteration"]  # CUDA graphs: of layers, or of the whole iteration
    cuda_graph_modules: CudaGraphModules | Sequence[CudaGraphModules]  # what is captured of a layer; default all of it
    cuda_graph_warmup_steps: int  # steps without CUDA graphs at the start
    overlap_moe_expert_parallel_comm: bool  # all-to-all overlap: one microbatch's forward runs beside another's backward
    delay_wgrad_compute: bool  # all-to-all overlap: weight gradients after the backward of their part
    routing_phase: Literal["forced_balance", "first_steps", "early", "early_strong_balancing", "pretraining", "fine_tuning"]
    router_imbalance: float | Literal["balanced", "worst"] | None  # rows of the busiest expert-parallel rank relative to balanced ...
    muon_fp32_matmul_prec: Literal["medium", "high", "highest"]  # muon: precision of its matrix products; medium has 16-bit matrices
    muon_nesterov: bool  # muon: Nesterov's momentum
    muon_split_qkv: bool  # muon: query, key and value are orthogonalized apart
    muon_tp_mode: Literal["blockwise", "duplicated", "distributed"] | None  # muon: what tensor-parallel ranks orthogonalize: their own ...
    optimizer: Literal["adam", "sgd", "muon", "lion"]  # optimizer
    sgd_momentum: float  # SGD momentum; 0 keeps no state
    use_layer_wise_param_layout: bool  # Muon: whole parameters are packed into one shard of the buffers per rank
    data_parallel_rank: int | None  # Muon's layer-wise optimizer: the rank of the data-parallel group to show; default: the fullest
    use_distributed_optimizer: bool  # optimizer state is sharded over data-parallel ranks
    accumulate_allreduce_grads_in_fp32: bool | None  # fp32 gradients; default: with bf16
    grad_reduce_in_bf16: bool  # bf16 gradients
    use_precision_aware_optimizer: bool  # optimizer state in the dtypes below
    main_grads_dtype: Literal["fp32", "bf16"]  # precision-aware: gradients
    main_params_dtype: Literal["fp32", "fp16"]  # precision-aware: main parameters
    exp_avg_dtype: Literal["fp32", "fp16", "bf16", "fp8"]  # precision-aware: first moment
    exp_avg_sq_dtype: Literal["fp32", "fp16", "bf16", "fp8"]  # precision-aware: second moment
    store_param_remainders: bool  # precision-aware: main parameters as int16 remainders of bf16 weights
    use_megatron_fsdp: bool  # Megatron-FSDP instead of DDP
    megatron_fsdp_version: int  # Megatron-FSDP: which implementation, 1 or 2
    data_parallel_sharding_strategy: Literal["no_shard", "optim", "optim_grads", "optim_grads_params"]  # Megatron-FSDP: what is sharded
    outer_dp_sharding_strategy: Literal["no_shard", "optim"]  # Megatron-FSDP: what is sharded over optimizer instances too (HSDP)
    init_model_with_meta_device: bool  # fully sharded: the model is built on the meta device, and not whole on the GPU first
    use_cpu_initialization: bool  # torch FSDP2: the model is built in host memory
    keep_fp8_transpose_cache: bool  # Megatron-FSDP: fp8 weights keep their copies by columns, whole, between the passes of their layers
    fsdp_double_buffer: bool  # Megatron-FSDP: gathered weights and gradients in two fixed buffers each
    nccl_ub: bool  # gradient and weight buffers are registered with NCCL
    suggested_communication_unit_size: int | None  # Megatron-FSDP: elements of a communication unit
    megatron_fsdp_main_grads_dtype: Literal["auto", "fp32", "bf16"]  # Megatron-FSDP: gradients
    megatron_fsdp_main_params_dtype: Literal["fp32", "auto"]  # Megatron-FSDP: main weights; auto: none
    use_torch_fsdp2: bool  # torch FSDP2 instead of DDP
    torch_fsdp2_reshard_after_forward: bool  # torch FSDP2: weights are sharded again after their forward
    overlap_grad_reduce: bool  # gradient reduction overlaps the backward (buckets)
    overlap_param_gather: bool  # parameter all-gather overlaps the forward
    overlap_param_gather_with_optimizer_step: bool  # the first chunk has an optimizer of its own, which steps before that of the others
    ddp_bucket_size: int | None  # elements of a gradient bucket
    ddp_num_buckets: int | None  # number of gradient buckets
    ddp_pad_buckets_for_high_nccl_busbw: bool  # buckets are padded to multiples of 2**16
    apex: bool  # NVIDIA Apex is installed: its LayerNorm in the local spec, not PyTorch's
    transformer_engine_version: str  # TransformerEngine version
    megatron_core_version: str  # Megatron-Core version

    # reinforcement learning
    rollout_engine: Literal["vllm", "sglang"] | None  # engine that generates samples
    rollout_colocated: bool  # the engine runs on the GPUs that train
    rollout_memory_share: float | None  # share of a GPU's memory that the engine takes while it generates, 0 to 1
    rollout_tensor_parallel_size: int | None  # GPUs that share one copy of the engine's weights
    rollout_sleeps: bool  # the engine gives its memory back while others run
    rollout_offload: RolloutOffload | Sequence[RolloutOffload]  # what of the trainer is in host memory while samples are generated
    log_prob_offload: LogProbOffload | Sequence[LogProbOffload]  # what of the trainer is in host memory while log-probabilities are ...
    log_prob_micro_batch_tokens: int | None  # tokens of a microbatch of that forward, before context parallelism; default: those of ...
    reference_model: Literal["none", "host", "device", "offloaded"]  # the reference policy: in host memory and swapped into the ...
    critic_model: Literal["none", "device", "in_turn"]  # PPO's critic, as large as the policy: on the device beside it, or each ...
    torch_memory_saver: bool  # what of the trainer leaves is paused by torch_memory_saver: gradient buffers have a copy in host memory too
    disable_grad_buffers_cpu_backup: bool  # torch_memory_saver: gradient buffers have no copy
    disable_param_buffers_cpu_backup: bool  # torch_memory_saver: parameter buffers have no copy; they come back from the main parameters
    weight_sync_bytes: int  # bytes of a bucket of the weight sync to the engine

    # model (overrides of the config)
    falcon_h1: bool  # Falcon-H1's layer: Mamba-2 and attention side by side behind one norm, then the MLP
    gemma4_moe: bool  # Gemma 4's experts beside a dense MLP, with norms of their own
    gemma4_dense: bool  # Gemma 4's layers without experts, of local modules and norms op by op
    per_layer_embed_dim: int | None  # Gemma 4: width of every layer's own embedding
    per_layer_embed_vocab_size: int | None  # Gemma 4: rows of the layers' own embedding
    kv_shared: bool  # Gemma 4: keys and values are those of an earlier layer (of a variant)
    kv_stored: bool  # Gemma 4: keys and values are held for later layers (of a variant)
    hc_lowrank: int | None  # Qwen3.8-Flash-Next: rank of the gates that mix its streams
    indexer_n_heads: int  # Qwen3.8-Flash-Next: query heads of the indexer
    indexer_head_dim: int  # Qwen3.8-Flash-Next: head dim of the indexer
    indexer_compress_ratio: int  # Qwen3.8-Flash-Next: tokens of a key of the indexer
    ple_layer_ids: Sequence[int]  # Qwen3.8-Flash-Next: layers with tables of n-grams, from 1
    ple_embed_dim: int  # Qwen3.8-Flash-Next: width of what the tables say of a token
    ple_conv_kernel_size: int  # Qwen3.8-Flash-Next: taps of the convolution behind the tables
    ngram_table_rows: Sequence[int]  # Qwen3.8-Flash-Next: rows of each table of n-grams
    attn_res_block_size: int | None  # Kimi K3: layers of a block of attention residuals
    moe_latent_norm: bool  # Kimi K3: norm before the experts' width is left again
    csa_compress_ratios: Sequence[int] | str | None  # DeepSeek-V4: tokens per compressed key of each layer (0 window only, 4 CSA, 128 ...
    csa_window_size: int  # DeepSeek-V4: keys of the sliding window
    csa_dense_mode: bool  # DeepSeek-V4: CSA layers attend to every compressed key, no indexer
    o_groups: int  # DeepSeek-V4: groups of the output projection
    o_lora_rank: int  # DeepSeek-V4: width of a group of the output projection
    moe_n_hash_layers: int  # first layers whose experts are chosen by the token's hash
    enable_mhc_connections: bool  # hyper-connections: several residual streams
    mhc_num_residual_streams: int  # hyper-connections: residual streams
    num_layers: int  # decoder layers, without MTP
    hidden_size: int  # width of the residual stream
    num_attention_heads: int  # query heads
    num_query_groups: int | None  # key and value heads; default: num_attention_heads
    kv_channels: int | None  # head dim; default: hidden_size / num_attention_heads
    value_channels: int | None  # head dim of value; default: kv_channels
    ffn_hidden_size: int | None  # width of a dense MLP, per gate half; default: 4 * hidden_size
    vocab_size: int | None  # vocabulary before padding
    padded_vocab_size: int | None  # vocabulary after padding; wins over vocab_size
    make_vocab_size_divisible_by: int  # vocabulary is padded to a multiple of this times tp
    max_position_embeddings: int | None  # largest position
    share_embeddings_and_output_weights: bool  # output layer uses the embedding table
    position_embedding_type: Literal["rope", "learned_absolute", "none", "yarn", "mrope"]  # position embedding
    rotary_percent: float  # part of the head dim that RoPE rotates
    rope_type: Literal["rope", "yarn"]  # MLA: RoPE
    original_max_position_embeddings: int  # YaRN: positions that its tables cover from the start
    normalization: Literal["LayerNorm", "RMSNorm", "L2Norm"]  # norm
    gated_linear_unit: bool  # gated MLP (SwiGLU, GEGLU)
    activation_func: Literal["gelu", "silu", "squared_relu", "quick_gelu", "relu", "fast_gelu", "situ"]  # activation of the MLP
    activation_func_clamp_value: float | None  # clamp of the gated activation (gpt-oss)
    activation_func_clamp_value_shared_expert: float | None  # clamp of shared experts; default: activation_func_clamp_value
    add_bias_linear: bool  # biases in all linears
    add_qkv_bias: bool  # bias in linear_qkv only
    qk_layernorm: bool  # norm on query and key (MLA: on the compressed ones)
    qk_layernorm_scope: Literal["head", "projection", "sharded_projection", "gathered_projection"]  # what a norm on query and key is ...
    qk_l2_norm: bool  # norm on query and key without parameters (Llama 4)
    value_norm: bool  # norm on value without parameters, in fp32 (Gemma 4)
    attention_output_gate: bool  # gate on the attention output (Qwen3-Next)
    softmax_type: Literal["vanilla", "off-by-one", "learnable"]  # softmax
    attention_dropout: float  # dropout on attention probabilities
    hidden_dropout: float  # dropout on the residual stream
    fp32_residual_connection: bool  # residual stream in fp32
    core_attention: Literal["transformer_engine", "local", "flex"]  # whose core attention: TransformerEngine's, Megatron-Core's own ...
    attn_logit_softcapping: float | None  # cap of the attention scores (Gemma 2)
    final_logit_softcapping: float | None  # cap of the logits (Gemma 2)
    sliding_window: int | None  # tokens before it that a query attends to; null: all
    local_rotary_table: bool  # a second RoPE table for layers with a sliding window, stacked with the first (Gemma 3, MiMo-V2-Flash)
    parallel_attention: bool  # attention and MLP side by side on one normed input (Falcon, Command-R)
    num_ln_in_parallel_attn: int  # norms of a layer with parallel_attention: 2 where the MLP has its own
    multi_latent_attention: bool  # multi-latent attention (DeepSeek)
    q_lora_rank: int | None  # MLA: width of the compressed query; null: not compressed
    kv_lora_rank: int  # MLA: width of the compressed key and value
    qk_head_dim: int  # MLA: head dim of query and key without RoPE
    qk_pos_emb_head_dim: int  # MLA: head dim with RoPE
    v_head_dim: int  # MLA: head dim of value
    num_moe_experts: int | None  # routed experts
    moe_layer_freq: int | Sequence[int] | str  # which layers are MoE: N (every Nth), a 0/1 list, or an expression such as ([0]*3+[1]*58)
    moe_router_topk: int  # experts per token
    moe_ffn_hidden_size: int | None  # width of an expert; default: ffn_hidden_size
    moe_shared_expert_intermediate_size: int | None  # total width of the shared experts
    moe_shared_expert_gate: bool  # gate on the shared expert
    moe_latent_size: int | None  # width in which the experts work (latent MoE)
    moe_router_score_function: Literal["softmax", "sigmoid", "sqrtsoftplus"]  # score function of the router
    moe_router_weight_in_fp32: bool  # routers keep their weight in fp32 (MiniMax-M3)
    moe_router_pre_softmax: bool  # softmax over all experts, before the choice
    moe_router_enable_expert_bias: bool  # aux-loss-free balancing by an expert bias buffer
    moe_router_load_balancing_type: MoeRouterLoadBalancingType | Sequence[MoeRouterLoadBalancingType]  # load balancing
    moe_aux_loss_coeff: float  # weight of the balancing loss
    moe_z_loss_coeff: float | None  # weight of the router's z-loss
    moe_router_num_groups: int | None  # groups of experts for group-limited routing
    moe_router_group_topk: int | None  # groups that a token may use
    mtp_num_layers: int | None  # multi-token prediction depths
    mtp_use_repeated_layer: bool  # all MTP depths share one layer
    experimental_attention_variant: Literal["gdn", "gdn2", "gdn_whole", "gdn_whole_cp", "dsa", "dsv4_hybrid", "kda"] | None
    linear_attention_freq: int | Sequence[int] | None  # N: every Nth layer is softmax attention; or a 0/1 list, 1 is linear attention
    linear_conv_kernel_dim: int  # Gated DeltaNet: width of the convolution
    linear_key_head_dim: int  # Gated DeltaNet: key head dim
    linear_value_head_dim: int  # Gated DeltaNet: value head dim
    linear_num_key_heads: int  # Gated DeltaNet: key heads
    linear_num_value_heads: int  # Gated DeltaNet: value heads
    dsa_indexer_n_heads: int | None  # sparse attention: heads of the indexer
    dsa_indexer_head_dim: int | None  # sparse attention: head dim of the indexer
    dsa_indexer_topk: int | None  # sparse attention: keys per query
    dsa_indexer_topk_freq: int  # sparse attention: layers that share the keys one indexer picks
    dsa_indexer_skip_topk_offset: int  # sparse attention: first layers with an indexer of their own
    dsa_indexer_loss_coeff: float  # sparse attention: weight of the indexer's loss
    hybrid_layer_pattern: str | None  # one character per sub-layer: M Mamba-2, G Gated DeltaNet, * attention, + MLA, D sparse MLA, WCH ...
    mamba_num_heads: int | None  # Mamba-2: heads; default: 2 * hidden_size / mamba_head_dim
    mamba_head_dim: int  # Mamba-2: head dim
    mamba_num_groups: int  # Mamba-2: groups
    mamba_state_dim: int  # Mamba-2: state size
    mamba_chunk_size: int  # Mamba-2: chunk length of the scan
    mamba_rmsnorm: bool  # Mamba-2: norm before out_proj
    norm_placement: Literal["pre", "post", "sandwich"]  # norms of a layer: before attention and MLP, behind both (EXAONE 4), or before ...
    attention_block: Literal["attention", "linear", "no_op"]  # what attention is, or stands in its place
    mlp_block: Literal["mlp", "linear", "no_op"]  # what the MLP is, or stands in its place
    variants: Mapping[str, Mapping[str, object]]  # layers of other shapes, by name: {"sliding": {"num_attention_heads": 96}}
    layer_variants: Sequence[str] | None  # the variant that each decoder layer is; base: the model as it is
    mtp_layer_variant: str | None  # the variant of an MTP layer; default: the last decoder layer's
    mtp_layer_variant_behind: str | None  # the same where stages before its own have decoder layers; default: mtp_layer_variant

    # environment
    cublas_workspace_config: str | None  # value of CUBLAS_WORKSPACE_CONFIG
    expandable_segments: bool  # PYTORCH_CUDA_ALLOC_CONF has expandable_segments:True
    nccl_nvls: bool  # NVLS is on (NCCL_NVLS_ENABLE)
    context_gib: float | None  # CUDA context, GiB
    libraries_gib: float | None  # CUDA libraries and kernels, GiB
    nccl_gib: float | None  # NCCL communicators, GiB
    fragmentation: float | None  # reserved memory over allocated memory, as a fraction of the peak
    gpus_per_node: int | None  # GPUs of one host; default: by GPU
    nvlink_domain: int | None  # GPUs that NVLink joins; default: by GPU
    network_gbs: float | None  # network of one GPU, one way, GB/s; default: by GPU
    max_memory: float | None  # memory that a run may take of a GPU, GiB; default: all of it
    head_room: str | None  # memory of a GPU to leave free: GiB such as 4, or a share such as 5%
    container: str | None  # container image, whose name says library versions: nvcr.io/nvidia/nemo:25.11
    door: Door | None  # what builds a model that is given by name, and decides its fusions and its loss; default: megatron-lm
    train_tokens: float | None  # tokens of the whole run, such as 15T: plan says its days
    gpu_hour_dollars: float | None  # dollars of a GPU for an hour: plan says tokens for a dollar
    gpu_mtbf_hours: float | None  # hours between failures of one GPU on average: plan says goodput; with restart_minutes and storage_gbs
    restart_minutes: float | None  # minutes from a failure to the next step
    storage_gbs: float | None  # GB/s at which all ranks together write a checkpoint
    save_interval: int | None  # steps between checkpoints; default: as many as cost least
    phases: Phases | Sequence[Phases]  # phases to judge: training only, or all

    # short names, and those of Megatron-LM's command line where they differ
    tp: int  # tensor_model_parallel_size
    pp: int  # pipeline_model_parallel_size
    ep: int  # expert_model_parallel_size
    cp: int  # context_parallel_size
    etp: int | None  # expert_tensor_parallel_size
    vpp: int | None  # virtual_pipeline_model_parallel_size
    num_virtual_stages_per_pipeline_rank: int | None  # virtual_pipeline_model_parallel_size
    decoder_first_pipeline_num_layers: int | None  # num_layers_in_first_pipeline_stage
    decoder_last_pipeline_num_layers: int | None  # num_layers_in_last_pipeline_stage
    microbatch_group_size_per_virtual_pipeline_stage: int | None  # microbatch_group_size_per_vp_stage
    fp8_format: Literal["hybrid", "e4m3"] | None  # fp8
    fp4_format: Literal["e2m1"] | None  # fp4
    use_nccl_ub: bool  # nccl_ub
    num_experts: int | None  # num_moe_experts

    # the rest
    gpu: str  # GPU that is judged, and that kernels are chosen for
    strict: bool  # refuse to decide the number of GPUs and the split of layers
    env: Environment | Mapping[str, object]  # settings of the environment, or variables by their own names
    bf16: bool  # params_dtype bf16
    fp16: bool  # params_dtype fp16
    attention_backend: Literal["auto", "flash", "fused", "unfused", "local"]  # Megatron-LM's attention_kernel


class ArgumentSettings(Settings, total=False):
    """Settings beside Megatron-LM arguments."""

    set_variables: Mapping[str, str]  # values of variables of a launch script
    words: Sequence[str]  # what stands behind a launch script on its command line
    follow: bool  # open files that a launch script sources from elsewhere than its own folder
    run_model: str  # the model, or recipe of Megatron-Bridge, of a run file that names none
    ignore_unknown: bool  # pass over unknown arguments, with a warning
    without_unmodelled: bool  # leave arguments of forks that are not modelled out: the figures are a bound
    more_arguments: Sequence[str]  # words of a command line, which win over a file's
