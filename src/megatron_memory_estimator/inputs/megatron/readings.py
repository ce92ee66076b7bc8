"""What arguments of older releases and of forks mean in Megatron-LM's terms, where they have such a meaning.

Sources: NVIDIA/Megatron-LM `megatron/training/arguments.py` (its older releases too), Ascend/MindSpeed-LLM `mindspeed_llm/`,
microsoft/Megatron-DeepSpeed `megatron/arguments.py`, alibaba/Pai-Megatron-Patch `megatron_patch/arguments.py`.

What arguments of Megatron-LM's older releases mean today, where today's program stops at them.

Sources: NVIDIA/Megatron-LM `megatron/training/arguments.py` of 2021 to 2026, `megatron/core/num_microbatches_calculator.py`.

Hybrid models as Megatron-LM described them until February 2026: shares of layers instead of a pattern.

Source: NVIDIA/Megatron-LM `megatron/core/ssm/mamba_hybrid_layer_allocation.py` of the releases up to 0.15.

Layers of pipeline stages in the words of forks, as a layout string.

Source: Ascend/MindSpeed-LLM (--num-layer-list, --noop-layers); Megatron-LM `megatron/core/transformer/pipeline_parallel_layer_layout.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...job.layer_kinds import frequency_list
from ...wording import LONGEST_SHOWN, dashed, plain, shown, whole
from ..questions import GPUS_OPTION, Question
from .classes import known_spec
from .programs import other_programs
from .reading import Reading, Words, one_number

SPLITS = (
    "pipeline_model_parallel_layout", "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers",
    "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split", "hybrid_layer_pattern",
    "hybrid_override_pattern", "mtp_num_layers",
)  # fmt: skip
"""Arguments that say otherwise how layers go to stages."""


def layers_per_stage(reading: Reading, words: tuple[str, ...]) -> None:
    """--num-layer-list 7,8,9: layers of each pipeline stage."""
    counts = [whole(word) for word in ",".join(words).replace(" ", "").split(",")]
    stages = reading.number("pipeline_model_parallel_size")
    split = (*SPLITS, "num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank")
    found = [count for count in counts if count is not None]
    if len(found) != len(counts) or len(found) != stages or sum(found) != reading.number("num_layers"):
        reading.refuse("num_layer_list", f"{','.join(words)} does not give {stages} stages their layers")
    elif other := _said_elsewhere(reading, split):
        reading.refuse("num_layer_list", f"with {dashed(other)} is not modelled")
    elif stages > 1:
        reading.changes["pipeline_model_parallel_layout"] = _layout(found)


def without_layers(reading: Reading, words: tuple[str, ...]) -> None:
    """--noop-layers 30,31: layers that hold nothing, in a split that counts them."""
    indices = {whole(word) for word in ",".join(words).replace(" ", "").split(",") if word}
    layers, chunks = reading.number("num_layers"), _chunks(reading)
    if not indices:
        return
    if None in indices or not layers or layers % chunks or max(i for i in indices if i is not None) >= layers:
        reading.refuse("noop_layers", f"{','.join(words)} does not name layers of {layers} over {chunks} stages")
    elif other := _said_elsewhere(reading, SPLITS):
        reading.refuse("noop_layers", f"with {dashed(other)} is not modelled")
    else:
        held = [at not in indices for at in range(layers)]
        per = layers // chunks
        _keep(reading, held)
        if chunks > 1:
            counts = [sum(held[at : at + per]) for at in range(0, layers, per)]
            reading.changes["pipeline_model_parallel_layout"] = _layout(counts)
            reading.changes |= {
                "num_layers_per_virtual_pipeline_stage": None,
                "num_virtual_stages_per_pipeline_rank": None,
            }


def _keep(reading: Reading, held: list[bool]) -> None:
    """The layers that are held, and which of them have experts."""
    reading.changes["num_layers"] = sum(held)
    if reading.get("num_experts"):
        with_experts = frequency_list("moe_layer_freq", reading.get("moe_layer_freq"), len(held))
        reading.changes["moe_layer_freq"] = [one for one, is_held in zip(with_experts, held, strict=True) if is_held]


def _chunks(reading: Reading) -> int:
    """Chunks of the pipeline: its stages, times the virtual ones."""
    stages = reading.number("pipeline_model_parallel_size") or 1
    per, virtual = (
        reading.number("num_layers_per_virtual_pipeline_stage"),
        reading.number("num_virtual_stages_per_pipeline_rank"),
    )
    if per:
        return max(reading.number("num_layers") // per, 1)
    return stages * (virtual or 1)


def _layout(counts: list[int]) -> str:
    parts = [f"t*{count}" if count else "" for count in counts]
    return "|".join(["E" + parts[0], *parts[1:-1], parts[-1] + "L"])


def _said_elsewhere(reading: Reading, names: tuple[str, ...]) -> str:
    return next((name for name in names if reading.get(name)), "")


def in_megatron_terms(given: Mapping[str, Any], others: Mapping[str, Words], num_gpus: int | None) -> Reading:
    """The readings of all arguments that have one."""
    reading = Reading(given, others, num_gpus)
    other_programs(reading)
    old_recomputation(reading)
    old_values(reading)
    old_hybrid_layers(reading)
    if reading.given.get("finetune") and not reading.given.get("no_load_optim"):
        reading.notes.append(
            "--finetune loads a checkpoint without optimizer state; --load-optim judges a resume with it"
        )
    for flag, (dest, value) in SAME.items():
        if flag in others and dest not in given:
            reading.changes[dest] = one_number(reading, flag, others[flag]) if value is None else value
    for flag, read in READERS.items():
        if flag in others:
            read(reading, others[flag])
    return reading


SAME: dict[str, tuple[str, Any]] = {
    "intra_layer_model_parallel_size": ("tensor_model_parallel_size", None),
    "distribute_checkpointed_activations": ("distribute_saved_activations", True),
    "RMSNorm": ("normalization", "RMSNorm"),
    "use_rmsnorm": ("normalization", "RMSNorm"),
    "use_rope": ("position_embedding_type", "rope"),
    "no_scaled_masked_softmax_fusion": ("masked_softmax_fusion", False),
    "fp8_hybrid": ("fp8", "hybrid"),
    "fp8_e4m3": ("fp8", "e4m3"),
    "create_attention_mask_in_dataloader": ("create_attention_mask_in_dataloader", True),
    "use_custom_fsdp": ("use_megatron_fsdp", True),
    "use_fused_moe_token_permute_and_unpermute": ("moe_permute_fusion", True),
    "qk_nope_head_dim": ("qk_head_dim", None),
    "qk_rope_head_dim": ("qk_pos_emb_head_dim", None),
    "moe_intermediate_size": ("moe_ffn_hidden_size", None),
    "use_qk_norm": ("qk_layernorm", True),
    "export_qk_l2_norm": ("qk_l2_norm", True),
    "export_moe_apply_probs_on_input": ("moe_apply_probs_on_input", True),
    "pad_vocab_size_to": ("padded_vocab_size", None),
    "intermediate_size": ("ffn_hidden_size", None),
}
"""Arguments that set one of today's, to a value or to their own (None)."""


def _key_value_heads(reading: Reading, words: Words) -> None:
    """--num-key-value-heads, --n-head-kv: query groups."""
    reading.changes |= {
        "group_query_attention": True,
        "num_query_groups": one_number(reading, "num_key_value_heads", words),
    }


def _one_group(reading: Reading, words: Words) -> None:
    """--attention-head-type multiquery: one group; multihead: as many as heads."""
    if words == ("multiquery",):
        reading.changes |= {"group_query_attention": True, "num_query_groups": 1}
    elif words != ("multihead",):
        reading.refuse("attention_head_type", f"{shown(' '.join(words))} is another attention, which is not modelled")


def _gated(reading: Reading, words: Words) -> None:
    """--glu-activation: gated MLPs, of which swiglu, geglu and reglu are as wide as each other."""
    if words == ("swiglu",):
        reading.changes["swiglu"] = True
    else:
        reading.refuse("glu_activation", f"{shown(' '.join(words))} is another MLP, which is not modelled")


def _layers_of_a_rank(reading: Reading, words: Words) -> None:
    """--enable-recompute-layers-per-pp-rank: --recompute-num-layers counts over all chunks of a rank, one layer of each chunk in turn."""
    chunks = _chunks(reading) // (reading.number("pipeline_model_parallel_size") or 1)
    layers = reading.number("recompute_num_layers")
    if reading.get("recompute_method") != "block" or chunks < 2:
        return
    if layers % chunks:
        reading.refuse(
            "enable_recompute_layers_per_pp_rank",
            f"with {layers} layers over {chunks} chunks recomputes more in the first ones, which is not modelled",
        )
    reading.changes["recompute_num_layers"] = layers // chunks


def _first_dense(reading: Reading, words: Words) -> None:
    """--first-k-dense-replace n: the first n layers are dense; of the others every --moe-layer-freq'th has experts."""
    first, layers = one_number(reading, "first_k_dense_replace", words), reading.number("num_layers")
    frequency = reading.get("moe_layer_freq")
    every = whole(str(frequency))
    if not reading.get("num_experts") or first == 0:
        return
    if not every:
        reading.refuse(
            "first_k_dense_replace", f"and --moe-layer-freq {shown(frequency)} both say which layers have experts"
        )
    elif first > layers:
        reading.questions.append(Question(f"--first-k-dense-replace {first} is more than --num-layers {layers}"))
    else:
        reading.changes["moe_layer_freq"] = [int(at >= first and at % every == 0) for at in range(layers)]


def _shared_experts(reading: Reading, words: Words) -> None:
    """--n-shared-experts n: as wide as n experts together."""
    width = reading.number("moe_ffn_hidden_size") or reading.number("ffn_hidden_size")
    count = one_number(reading, "n_shared_experts", words)
    if count and not width:
        reading.questions.append(
            Question("--n-shared-experts needs --moe-ffn-hidden-size", "--moe-ffn-hidden-size VALUE")
        )
    elif count:
        reading.changes["moe_shared_expert_intermediate_size"] = count * width


def _context_parallel(reading: Reading, words: Words) -> None:
    """--context-parallel-algo: a ring, or DeepSpeed's Ulysses; the others have buffers of their own."""
    kinds = {"megatron_cp_algo": "p2p", "ulysses_cp_algo": "a2a"}
    name = " ".join(words)
    if reading.number("context_parallel_size") <= 1:
        return
    if name in kinds:
        reading.changes["cp_comm_type"] = [kinds[name]]
    else:
        reading.refuse("context_parallel_algo", f"{name} is not modelled; only {' and '.join(kinds)} are")


def _experts_over_tensor_ranks(reading: Reading, words: Words) -> None:
    """--moe-tp-extend-ep: whole experts, spread over the tensor-parallel ranks too."""
    tp, ep = reading.number("tensor_model_parallel_size"), reading.number("expert_model_parallel_size")
    reading.changes |= {"expert_model_parallel_size": tp * ep, "expert_tensor_parallel_size": 1}


def _experts_sliced_further(reading: Reading, words: Words) -> None:
    """--moe-extended-tp: every expert on every rank, sliced over tensor- and expert-parallel ranks."""
    tp, ep = reading.number("tensor_model_parallel_size"), reading.number("expert_model_parallel_size")
    reading.changes |= {"expert_model_parallel_size": 1, "expert_tensor_parallel_size": tp * ep}
    reading.is_read_as("moe_extended_tp", f"--expert-tensor-parallel-size {tp * ep} --expert-model-parallel-size 1")


def _experts_over_data_ranks(reading: Reading, words: Words) -> None:
    """--expert-parallel: experts over all data-parallel ranks."""
    ranks = reading.number("tensor_model_parallel_size") * reading.number("pipeline_model_parallel_size")
    if reading.num_gpus is None:
        reading.questions.append(
            Question("--expert-parallel spreads experts over all data-parallel ranks", GPUS_OPTION)
        )
    else:
        reading.changes["expert_model_parallel_size"] = max(reading.num_gpus // max(ranks, 1), 1)


def _zero_stage(reading: Reading, words: Words) -> None:
    if words != ("0",):
        reading.refuse(
            "zero_stage", f"{' '.join(words)} of DeepSpeed (DeepSpeed's engine) decides memory and is not modelled"
        )


def _stage(reading: Reading, words: Words) -> None:
    if words not in (("sft",), ("pretrain",), ("pt",)):
        reading.refuse("stage", f"{' '.join(words)} of MindSpeed decides memory (a second model) and is not modelled")


def _grouped_gradients(reading: Reading, words: Words) -> None:
    if reading.get("gradient_accumulation_fusion") is False and reading.get("num_experts"):
        reading.notes.append(
            "--gemm-gradient-accumulation-fusion fuses the gradients of experts only; the figures are those without fusion, a little more"
        )


def _uneven_rows(reading: Reading, words: Words) -> None:
    note = "rows may be shorter than seq_length; the figures are those of full rows, at most"
    if note not in reading.notes:
        reading.notes.append(note)


def _padded_rows(reading: Reading, words: Words) -> None:
    """--max-padding-length: the length that samples of a finetuning set are padded to; --seq-length is of pretraining sets."""
    dataset = " ".join(reading.others.get("dataset", ())).lower()
    if any(word in dataset for word in ("pretrain", "idxmap", "mmap")) or PRETRAINS in reading.others.items():
        reading.notes.append("--max-padding-length has no effect: rows of a pretraining data set have --seq-length")
        return
    length = one_number(reading, "max_padding_length", words)
    if not length:
        return
    seq = reading.number("seq_length")
    if not dataset and seq >= length:
        return  # which of the two counts is not said: the longer
    if length != seq:
        reading.changes["seq_length"] = length
        reading.is_read_as("max_padding_length", f"--seq-length {length}: samples are padded to it")
    if reading.number("max_position_embeddings") < length:
        reading.changes["max_position_embeddings"] = length


PRETRAINS = ("train_mode", ("pretrain",))


def _train_mode(reading: Reading, words: Words) -> None:
    """--train-mode: pretraining has rows of --seq-length, finetuning those of its set, as --max-padding-length says."""
    if words not in (("pretrain",), ("finetune",)):
        reading.refuse("train_mode", f"{' '.join(words)} of Pai-Megatron-Patch is not modelled")


def _bridge(reading: Reading, words: Words) -> None:
    if "bridge_hf_model" not in reading.others:
        reading.questions.append(
            Question("--use-bridge takes the model's sizes from --bridge-hf-model, which is not given")
        )


def _passes(reading: Reading, words: Words) -> None:
    """Read elsewhere: by another argument, or with the vocabulary."""


READERS: dict[str, Callable[[Reading, Words], None]] = {
    "first_k_dense_replace": _first_dense,
    "num_key_value_heads": _key_value_heads,
    "n_head_kv": _key_value_heads,
    "attention_head_type": _one_group,
    "glu_activation": _gated,
    "enable_recompute_layers_per_pp_rank": _layers_of_a_rank,
    "custom_pipeline_layers": layers_per_stage,
    "n_shared_experts": _shared_experts,
    "context_parallel_algo": _context_parallel,
    "moe_tp_extend_ep": _experts_over_tensor_ranks,
    "moe_extended_tp": _experts_sliced_further,
    "expert_parallel": _experts_over_data_ranks,
    "zero_stage": _zero_stage,
    "stage": _stage,
    "gemm_gradient_accumulation_fusion": _grouped_gradients,
    "variable_seq_lengths": _uneven_rows,
    "no_pad_to_seq_lengths": _uneven_rows,
    "neat_pack": _passes,
    "max_padding_length": _padded_rows,
    "train_mode": _train_mode,
    "hybrid_attention_ratio": _passes,
    "hybrid_mlp_ratio": _passes,
    "use_bridge": _bridge,
    "bridge_hf_model": _passes,
    "num_layer_list": layers_per_stage,
    "noop_layers": without_layers,
    "patch_tokenizer_type": _passes,
    "extra_vocab_size": _passes,
    "activations_checkpoint_method": _passes,
    "activations_checkpoint_num_layers": _passes,
    "activations_checkpoint_granularity": _passes,
    "checkpoint_num_layers": _passes,
}
"""A reader for each argument of forks and older releases that has a reading, in the order in which they build on each other."""


def old_recomputation(reading: Reading) -> None:
    """--checkpoint-activations and --activations-checkpoint-*: what recomputation was called until 2022."""
    method = reading.others.get("activations_checkpoint_method")
    kind = reading.others.get("activations_checkpoint_granularity")
    count = reading.others.get("activations_checkpoint_num_layers") or reading.others.get("checkpoint_num_layers")
    on = bool(reading.given.get("checkpoint_activations"))
    if not (on or method or kind) or reading.given.get("recompute_granularity") is not None:
        return
    words = [dashed(name) for name in reading.others if name.startswith(("activations_checkpoint", "checkpoint_num"))]
    flags = ", ".join([*(["--checkpoint-activations"] if on else []), *words])
    if kind == ("selective",):
        reading.changes["recompute_granularity"] = "selective"
        reading.notes.append(f"{flags}: read as --recompute-granularity selective")
        return
    layers = one_number(reading, "activations_checkpoint_num_layers", count) if count else 1
    how = method[0] if method else "uniform"
    if how not in ("uniform", "block"):
        reading.questions.append(Question(f"--activations-checkpoint-method is uniform or block, not {shown(how)}"))
    reading.changes |= {"recompute_granularity": "full", "recompute_method": how, "recompute_num_layers": layers}
    stops = "; Megatron-LM of today stops at --checkpoint-activations" if on else ""
    reading.notes.append(
        f"{flags}: read as --recompute-granularity full --recompute-method {how} --recompute-num-layers {layers}{stops}"
    )


def old_values(reading: Reading) -> None:
    """Sizes and values under names that today's program stops at."""
    for old, new in (
        ("batch_size", "micro_batch_size"),
        ("model_parallel_size", "tensor_model_parallel_size"),
    ):
        value = reading.given.get(old)
        if value is not None and new not in reading.given:
            reading.changes[new] = value
            reading.is_read_as(old, f"{dashed(new)} {value}; Megatron-LM of today stops at it")
    if reading.given.get("position_embedding_type") == "learned":
        reading.changes["position_embedding_type"] = "learned_absolute"
    if reading.given.get("moe_token_dispatcher_type") == "alltoall_seq":
        reading.changes["moe_token_dispatcher_type"] = "alltoall"
        reading.notes.append("--moe-token-dispatcher-type alltoall_seq, gone since 2025, is read as alltoall")
    _batch_schedule(reading)


SUFFIXES = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def _batch_schedule(reading: Reading) -> None:
    """The largest batch of a schedule `0:384 200B:768`: it keeps the most microbatches in flight."""
    schedule = reading.given.get("step_batch_size_schedule")
    if schedule is None:
        return
    sizes = [whole(step.rpartition(":")[2]) for step in str(schedule).strip("[]").replace(",", " ").split()]
    if not sizes or not all(sizes):
        reading.questions.append(
            Question(f"--step-batch-size-schedule={shown(schedule)} must hold steps such as 0:384 200B:768")
        )
    elif reading.given.get("global_batch_size") is None:
        largest = max(size for size in sizes if size)
        reading.changes["global_batch_size"] = largest
        reading.notes.append(f"global_batch_size {largest}, the largest of --step-batch-size-schedule, is taken")
    else:
        reading.questions.append(
            Question("--step-batch-size-schedule and --global-batch-size exclude each other; take one out")
        )


RATIOS = ("hybrid_attention_ratio", "hybrid_mlp_ratio")


def old_hybrid_layers(reading: Reading) -> None:
    """The pattern that --hybrid-attention-ratio and --hybrid-mlp-ratio spread over --num-layers; without them a hybrid spec has
    Mamba layers alone. A pattern that is given wins."""
    if reading.get("hybrid_layer_pattern") or reading.get("hybrid_override_pattern"):
        return
    flags = [name for name in RATIOS if name in reading.others]
    spec = reading.get("spec")
    layers = reading.number("num_layers")
    if not layers or not (flags or (spec is not None and known_spec(spec))):
        return
    attention, mlp = (_ratio(reading, name) for name in RATIOS)
    if attention + mlp > 1:
        reading.questions.append(Question("--hybrid-attention-ratio and --hybrid-mlp-ratio are more than 1 together"))
        return
    pattern = spread_layers(layers, attention, mlp)
    reading.changes["hybrid_layer_pattern"] = pattern
    what = " ".join(dashed(name) for name in flags) or "--spec without a pattern"
    reading.notes.append(f"{what}: read as --hybrid-layer-pattern {plain(pattern, LONGEST_SHOWN)}")


def spread_layers(count: int, attention_ratio: float, mlp_ratio: float) -> str:
    """One letter for each of `count` layers: attention evenly between Mamba layers, then MLPs in place of Mamba layers."""
    attention = round(count * attention_ratio)
    mamba = count - attention
    letters = _placed(["M"] * count, "*", mamba / (attention + 1))
    mlp = round(count * mlp_ratio)
    if mlp:
        letters = _placed(letters, "-", (mamba - mlp) / mlp)
    return "".join(letters)


def _placed(letters: list[str], letter: str, gap: float) -> list[str]:
    """The letters with `letter` in place of every Mamba layer that `gap` of them lie in front of."""
    found, left = list(letters), gap
    for at, one in enumerate(letters):
        if one != "M":
            continue
        if left < 0.5:
            found[at] = letter
            left += gap
        else:
            left -= 1
    return found


def _ratio(reading: Reading, name: str) -> float:
    words: Words = reading.others.get(name, ("0",))
    try:
        share = float(words[0]) if len(words) == 1 else -1.0
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        flag = dashed(name)
        reading.questions.append(Question(f"{flag} takes a share from 0 to 1, not {shown(' '.join(words))}"))
        return 0.0
    return share
