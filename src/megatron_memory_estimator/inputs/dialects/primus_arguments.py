"""Arguments in Primus' files: Megatron-LM's by destination, as its words or as settings over a model, and Primus' own.

Source: AMD-AIG-AIMA/Primus `primus/configs/modules/megatron/`, `primus/configs/models/megatron/primus_megatron_model.yaml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import ConfigError
from ...job.model import Model
from ...wording import dashed, shown
from ..file_keys import names_files, not_followed
from ..hf.load import load
from ..megatron.classes import refuse_unmodelled
from ..megatron.derive import derive
from ..megatron.table import arguments
from ..megatron.vocabulary import known_size
from ..megatron.words import OLD_NAMES, destination
from ..setting_names import known_settings
from .keys import DECIDES, patterns

KERNELS = ("enable_primus_turbo", "use_turbo_", "fused_padded_mla_attention", "moe_use_legacy_grouped_gemm")
"""Kernels for AMD's GPUs that change what is saved, and beginnings of such."""
NOTHING = """
    turbo_* profile* disable_* dump_* log_* use_rocm_* stderr_* file_sink_* sink_* fp8_amax_* pp_warmup
    moe_router_force_load_balancing no_fp8_weight_transpose_cache tensorboard_* wandb_* mlflow_* primus_*
    auto_continue_train trainable checkpoint_* use_deprecated_* debug_* torch_profiler_* deprecated_* check_for_*
    finetune tokenizer_* te_*
"""
"""Primus' own arguments without effect, and beginnings of such."""
DECIDE = {
    "enable_zero_bubble": "is another pipeline schedule",
    "patch_zero_bubble": "is another pipeline schedule",
    "enable_1f1b_v": "is another pipeline schedule",
    "zero_bubble_v_schedule": "is another pipeline schedule",
    "pp_algorithm": "is another pipeline schedule",
    "decoder_pipeline_manual_split_list": "splits layers over stages by a list",
    "final_logit_softcapping": "is another architecture",
    "router_logit_softcapping": "is another architecture",
}
"""Primus' own arguments that decide memory, and what they do."""
SIZED = (
    "NullTokenizer",
    "TikTokenizer",
    "GPT2BPETokenizer",
    "SentencePieceTokenizer",
    "GPTSentencePieceTokenizer",
    "HuggingFaceTokenizer",
)
"""Tokenizers that Megatron-LM has by these names; the others of Primus are Hugging Face's."""


def known_and_own(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments that Megatron-LM has, by destination, and those that only Primus has. Nulls are left out."""
    by_flag, by_dest = arguments()
    given: dict[str, Any] = {}
    own: dict[str, Any] = {}
    for key, value in values.items():
        name = OLD_NAMES.get(key, key)
        if key == "moe_router_force_load_balancing" or (name not in by_dest and name not in by_flag):
            if name:
                own[name] = value
        elif value is None:
            given.pop(name, None)
        elif name in by_dest:
            given[name] = value
        else:
            dest, meant = destination(key, name, value)
            given[dest] = meant
    return given, own


def own_arguments(own: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Names of Primus' own arguments that are unknown, and what is refused."""
    exact, starts = patterns(NOTHING + " ".join(f"{one}*" for one in KERNELS))
    unknown, refused = [], []
    for key, value in own.items():
        if key in exact or key.startswith(starts) or value in (None, False, "", [], {}, "none"):
            continue
        if key in DECIDE:
            refused.append(f"{key}={shown(value)} of Primus {DECIDE[key]}, which is not modelled")
        elif names_files(key, value):
            refused.append(not_followed(key, value))
        elif DECIDES.search(key):
            refused.append(f"{key}={shown(value)} of Primus decides memory and is not modelled")
        else:
            unknown.append(key)
    return unknown, refused


def tokenizer_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """The tokenizer in Megatron-LM's names: Primus' own types are Hugging Face's."""
    kind = given.get("tokenizer_type")
    return {} if kind in (None, *SIZED) else {"tokenizer_type": "HuggingFaceTokenizer"}


def megatron_words(given: Mapping[str, Any]) -> tuple[str, ...]:
    """The words of Megatron-LM that set destinations to these values; defaults need none."""
    by_flag, by_dest = arguments()
    words: list[str] = []
    for dest, value in given.items():
        argument = by_dest[dest]
        if value is None or (value == argument.default and type(value) is type(argument.default)):
            continue
        if argument.kind == "Store":
            several = argument.nargs and isinstance(value, list | tuple)
            words += [dashed(argument.flag), *(map(str, value) if several else [str(value)])]
            continue
        wanted = "StoreTrue" if str(value).lower() == "true" else "StoreFalse"
        words += [dashed(one.flag) for one in by_flag.values() if one.dest == dest and one.kind == wanted][:1]
    return tuple(words)


def over_a_model(
    entry: str, defaults: Mapping[str, Any], given: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any], list[str], tuple[str, ...]]:
    """What holds over a model of the catalogue: Primus' defaults, what the run gives, what is assumed, and what is warned of."""
    experts = {"moe_token_dispatcher_type": "alltoall", "moe_grouped_gemm": True} if _has_experts(entry) else {}
    before = derive({**defaults, **experts, "position_embedding_type": "rope"})
    after = derive({**defaults, **experts, "position_embedding_type": "rope", **given})
    owners = known_settings()
    ours = {name: value for name, value in before.items() if owners.get(name) is not Model}
    ours |= {"attention_dropout": 0.0, "hidden_dropout": 0.0, "make_vocab_size_divisible_by": 128}
    if experts:
        ours["expert_tensor_parallel_size"] = 1
    settings = {name: value for name, value in after.items() if name in given or before.get(name) != value}
    size = known_size(str(given.get("tokenizer_model") or entry))
    notes = []
    if "padded_vocab_size" not in given:
        if size is not None:
            settings["vocab_size"] = size
            notes.append(f"vocab_size {size}: the length of the tokenizer of {given.get('tokenizer_model') or entry}")
        else:
            notes.append("vocab_size as in the model's config: the length of its tokenizer is not known")
    return ours, settings, notes, refuse_unmodelled(given)


def _has_experts(entry: str) -> bool:
    try:
        return bool(load(entry).config.get("num_moe_experts"))
    except ConfigError:  # asked for with the model's name
        return False
