"""What arguments of older releases and of forks mean in Megatron-LM's terms, where they have such a meaning.

Sources: NVIDIA/Megatron-LM `megatron/training/arguments.py` (its older releases too), Ascend/MindSpeed-LLM `mindspeed_llm/`,
microsoft/Megatron-DeepSpeed `megatron/arguments.py`, alibaba/Pai-Megatron-Patch `megatron_patch/arguments.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...wording import shown, whole
from ..questions import Question
from .old_arguments import old_recomputation, old_values
from .old_hybrids import old_hybrid_layers
from .programs import other_programs
from .reading import Reading, Words, one_number
from .stage_lists import layers_per_stage, without_layers


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
}
"""Arguments that set one of today's, to a value or to their own (None)."""


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
            Question("--expert-parallel spreads experts over all data-parallel ranks", "--num-gpus N")
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
