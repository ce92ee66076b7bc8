"""The settings of a random job, part by part; each part sees what was drawn before it."""

from __future__ import annotations

from collections.abc import Callable

from .random_jobs import RECIPES, Job


def precision(j: Job) -> None:
    """Dtypes, fp8 and fp4, kernels, versions."""
    c = j.choice
    if j.local:
        j.set(transformer_impl="local", moe_grouped_gemm=False, params_dtype=c.of("bf16", "fp16"))
        return
    dtype = "fp32" if j.fp32 else c.of("bf16", "bf16", "bf16", "fp16")
    if dtype != "bf16":
        j.set(params_dtype=dtype)
    if c.rarely(3) and not j.fp32:
        j.set(attention_kernel=c.of("flash", "cudnn", *(("unfused",) if j.cp == 1 else ())))
    if c.rarely(2):
        j.set(
            transformer_engine_version=c.of("2.11", "2.1", "1.13"), megatron_core_version=c.of("0.20", "0.16", "0.12")
        )
    if j.fp32 or not c.rarely(6):
        return
    legal = [name for name, least in RECIPES.items() if j.capability >= least]
    if j.capability >= 100 and c.rarely(4):
        j.set(fp4="e2m1")
    elif legal:
        j.set(fp8=c.of("hybrid", "e4m3"), fp8_recipe=c.of(*legal))
    if j.has("fp8") and j.settings["fp8_recipe"] != "delayed" and c.rarely(4):
        j.set(first_last_layers_bf16=True)
    if j.has("fp8") and c.rarely(2):
        j.set(activation_func_fp8_input_store=True)


def recomputation(j: Job) -> None:
    """Full or selective recomputation."""
    c, kind = j.choice, j.choice.of("none", "none", "selective", "selective", "full")
    if kind == "full":
        method = c.of("uniform", "block")
        j.set(recompute_granularity="full", recompute_method=method)
        j.set(recompute_num_layers=c.of(1, 2) if method == "block" or not (j.mtp or j.hybrid) else 1)
        if j.tp > 1 and not j.settings["sequence_parallel"] and c.rarely(8):
            j.set(distribute_saved_activations=True)
    elif kind == "selective":
        delayed = j.has("fp8") and j.settings["fp8_recipe"] == "delayed"
        sparse = any(kind.startswith("dsa") for kind in j.model.kinds)
        modules = ["mlp", *([] if sparse else ["core_attn"]), *([] if delayed else ["layernorm"])]
        modules += ["moe_act"] if j.moe and not (delayed or j.local) else []
        modules += ["moe"] if j.moe else []
        modules += ["mla_up_proj"] if j.model.multi_latent_attention and not sparse else []
        modules += ["shared_experts"] if j.moe and j.model.moe_shared_expert_intermediate_size else []
        j.set(recompute_granularity="selective", recompute_modules=c.some(*modules))


def dispatch(j: Job) -> None:
    """Dispatchers, capacity, paged stash, overlap of all-to-alls."""
    if not j.moe:
        return
    c = j.choice
    kind = c.of("alltoall", "alltoall", "allgather", "flex" if j.tp * j.ep > 1 else "alltoall")
    j.set(moe_token_dispatcher_type=kind, moe_permute_fusion=c.of(True, False), moe_router_dtype=c.of(None, "fp32"))
    if not j.local:
        j.set(moe_grouped_gemm="moe_act" in j.settings.get("recompute_modules", ()) or c.of(True, True, False))
    if kind == "flex" and c.rarely(10):
        j.set(moe_flex_dispatcher_backend="hybridep")
        if c.rarely(10):
            j.set(moe_expert_rank_capacity_factor=1.5, moe_paged_stash=c.of(False, True))
    elif kind != "allgather" and c.rarely(3):
        j.set(moe_expert_capacity_factor=c.of(1.0, 1.25), moe_pad_expert_input_to_capacity=c.of(True, False))
    if c.rarely(4):
        j.set(router_imbalance=c.of(1.1, 2.0, "worst"))
    elif c.rarely(6):
        j.set(routing_phase=c.of("early", "first_steps", "fine_tuning", "forced_balance"))
    recomputed = j.settings.get("recompute_modules", ())
    full = j.settings.get("recompute_granularity") == "full"
    plain = not (j.hybrid or j.fp32 or full or "moe" in recomputed) and (j.pp == 1 or j.vpp > 1)
    if plain and j.ep > 1 and kind != "allgather" and not (j.mtp > 1 or (j.mtp and j.pp == 1)) and c.rarely(8):
        j.set(overlap_moe_expert_parallel_comm=True, delay_wgrad_compute=c.of(False, True))
    elif (
        j.model.moe_shared_expert_intermediate_size
        and kind != "allgather"
        and "shared_experts" not in recomputed
        and c.rarely(4)
    ):
        j.set(moe_shared_expert_overlap=True)


def optimizer(j: Job) -> None:
    """The optimizer, its dtypes, who holds its state, buckets."""
    c, kind = j.choice, j.choice.of("adam", "adam", "adam", "sgd", "muon")
    if kind != "adam":
        j.set(optimizer=kind)
    if kind == "sgd":
        j.set(use_distributed_optimizer=False, sgd_momentum=c.of(0.9, 0.0))
    else:
        j.set(use_distributed_optimizer=c.of(True, True, False))
    sharded = j.has("use_distributed_optimizer")
    aware = kind == "adam" and sharded and not j.fp32 and c.rarely(6)
    if aware:
        j.set(
            use_precision_aware_optimizer=True, exp_avg_dtype=c.of("fp32", "bf16", "fp16", "fp8"),
            exp_avg_sq_dtype=c.of("fp32", "bf16", "fp16", "fp8"), main_params_dtype=c.of("fp32", "fp16"),
            main_grads_dtype=c.of("fp32", "bf16"), store_param_remainders=c.of(True, False),
        )  # fmt: skip
    elif c.rarely(4):
        j.set(**{c.of("grad_reduce_in_bf16", "accumulate_allreduce_grads_in_fp32"): True})
    if kind == "adam" and sharded and c.rarely(2):
        j.set(optimizer_cpu_offload=True, optimizer_offload_fraction=c.of(1.0, 0.5, 0.3))
    if sharded and c.rarely(10):
        j.set(overlap_grad_reduce=True, overlap_param_gather=c.of(True, False))
        j.set(**c.of({}, {"ddp_bucket_size": 1_000_000}, {"ddp_num_buckets": 3}))
    if sharded and c.rarely(2):
        j.set(ddp_pad_buckets_for_high_nccl_busbw=True)
    shards = j.dp * j.cp
    if sharded and kind != "muon" and shards % 2 == 0 and j.ep == 1 and not j.moe and c.rarely(3):
        j.set(num_distributed_optimizer_instances=2)


def full_sharding(j: Job) -> None:
    """Megatron-FSDP and torch FSDP2."""
    c, s = j.choice, j.settings
    if s.get("optimizer") == "muon" or j.has("optimizer_cpu_offload") or j.has("overlap_moe_expert_parallel_comm"):
        return
    if j.has("use_distributed_optimizer") and s.get("optimizer") is None and c.rarely(2):
        j.set(
            use_megatron_fsdp=True, fsdp_double_buffer=c.of(False, True),
            data_parallel_sharding_strategy=c.of("optim_grads_params", "optim_grads", "optim", "no_shard"),
        )  # fmt: skip
    elif not j.has("use_distributed_optimizer") and j.pp == 1 and j.ep == 1 and not tied(j) and c.rarely(4):
        j.set(use_torch_fsdp2=True, gradient_accumulation_fusion=False)


def tied(j: Job) -> bool:
    """Whether the output layer uses the embedding's weight."""
    return bool(j.model.share_embeddings_and_output_weights)


def low_precision_weights(j: Job) -> None:
    """Weights that are kept in low precision."""
    if not j.has("use_distributed_optimizer") or j.has("optimizer_cpu_offload") or not j.choice.rarely(6):
        return
    if j.has("fp4"):
        j.set(fp4_param_gather=True)
    elif j.has("fp8"):
        mx = j.settings["fp8_recipe"] == "mxfp8" and not j.has("use_megatron_fsdp")
        j.set(fp8_param_gather=True, **({"reuse_grad_buf_for_mxfp8_param_ag": True} if mx else {}))


def adapters(j: Job) -> None:
    """LoRA and its kin."""
    c = j.choice
    if j.local or j.has("use_megatron_fsdp") or j.has("use_torch_fsdp2") or not c.rarely(2):
        return
    j.set(peft=c.of("lora", "canonical_lora", "lora" if j.moe else "dora"), peft_dim=c.of(16, 32))


def offloading(j: Job) -> None:
    """Activations in host memory."""
    c, full = j.choice, j.settings.get("recompute_granularity") == "full"
    layers = j.settings["num_layers"]
    if j.pp == 1 and layers > 1 and not j.has("recompute_granularity") and not j.has("moe_paged_stash") and c.rarely(2):
        j.set(
            cpu_offloading_num_layers=c.of(1, layers - 1),
            cpu_offloading_double_buffering=c.of(False, True),
            cpu_offloading=True,
        )
    elif not full and not j.local and c.rarely(2):
        modules = ("core_attn", "attn_norm", "qkv_linear", *(("expert_fc1", "moe_act") if j.moe else ("mlp_norm",)))
        j.set(
            fine_grained_activation_offloading=True,
            offload_modules=c.some(*modules),
            activation_offload_fraction=c.of(1.0, 0.5),
        )


def graphs(j: Job) -> None:
    """CUDA graphs."""
    c, full = j.choice, j.settings.get("recompute_granularity") == "full"
    if not c.rarely(3):
        return
    impl = "full_iteration" if full else c.of("transformer_engine", "local", "full_iteration")
    j.set(cuda_graph_impl=impl, cuda_graph_warmup_steps=c.of(3, 0))
    if impl != "full_iteration" and c.rarely(14):
        j.set(cuda_graph_modules=c.some("attn", *(("moe_router",) if j.moe else ("mlp",))))


def rest(j: Job) -> None:
    """Overlaps, the loss, the environment."""
    c = j.choice
    if c.rarely(2):
        j.set(create_attention_mask_in_dataloader=True)
    if j.settings["sequence_parallel"] and not j.local and c.rarely(3):
        j.set(tp_comm_overlap=True)
    if j.vpp > 1 and j.pp > 2 and c.rarely(3):
        j.set(overlap_p2p_comm=False)
    if c.rarely(8):
        j.set(cross_entropy_loss_fusion=True, cross_entropy_fusion_impl=c.of("te", "native"))
    if j.pp > 1 and not j.mtp and not j.hybrid and c.rarely(2):
        j.set(defer_embedding_wgrad_compute=True, gradient_accumulation_fusion=True, wgrad_deferral_limit=c.of(0, 1, 2))
        if j.has("use_torch_fsdp2"):
            j.set(defer_embedding_wgrad_compute=False)
    if c.rarely(3):
        j.set(
            env=c.of({"expandable_segments": True}, {"fragmentation": 0.1}, {"nccl_nvls": True}, {"context_gib": 0.5})
        )


PARTS: tuple[Callable[[Job], None], ...] = (
    precision, recomputation, dispatch, optimizer, full_sharding, low_precision_weights, adapters, offloading, graphs, rest,
)  # fmt: skip
