"""Which arguments are modelled, which are irrelevant to memory, and which are refused or ignored with a warning.

Source: Megatron-LM `megatron/training/arguments.py` (parser and validate_args).

Megatron-LM arguments that change nothing that is modelled. Each names the file and line that shows it, of Megatron-Core 0.19.2 and
TransformerEngine 2.20.2, or of `main` where a release does not have it yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import UnsupportedError
from ...wording import LONGEST_SHOWN, plain, shown
from ..setting_names import known_settings
from ..transformer_config import IRRELEVANT, UNCOUNTED, UNSUPPORTED, known_of, uncounted
from .derive import DERIVED
from .table import Argument, arguments

IGNORED = "not modelled, ignored with a warning"


def refuse_unmodelled(given: Mapping[str, Any]) -> tuple[str, ...]:
    """The warnings about arguments that belong to other programs and about specs that follow the arguments.

    Raises UnsupportedError for all that are not modelled.
    """
    refuse_values(given)
    by_dest = arguments()[1]
    ignored, refused, specs = [], [], list[str]()
    for dest, value in given.items():
        if value == by_dest[dest].default or value in (None, False):
            continue
        kind = argument_class(dest)
        if kind in ("modelled", "irrelevant") or dest in UNCOUNTED:
            continue
        if dest == "spec" and known_spec(value):
            continue
        if dest == "spec" and _spec_words(value)[:1] in FOLLOWING_SPECS:
            specs.append(plain(" ".join(_spec_words(value)), LONGEST_SHOWN))
            continue
        if dest == "spec":
            refused.append(f"spec={shown(value)} (layers of Python code; take it out if they are Megatron-LM's own)")
            continue
        if dest == "eval_micro_batch_size" and _at_most(value, given.get("micro_batch_size", 1)):
            continue  # an evaluation keeps less than a training step of as many samples
        if dest in _OTHER_PROGRAMS:
            raise UnsupportedError(f"Megatron argument {dest}={shown(value)} belongs to a program that is not modelled")
        if kind == IGNORED:
            ignored.append(dest)
            continue
        refused.append(f"{dest}={shown(value)}")
    if refused:
        verb = "argument {} is" if len(refused) == 1 else "arguments {} are"
        known = known_of(*(dest for dest in given if _stated(dest, given[dest], by_dest)))
        raise UnsupportedError(f"Megatron {verb.format(', '.join(refused))} not modelled{known}")
    notes = [f"not modelled and ignored: {', '.join(sorted(ignored))}"] if ignored else []
    notes += uncounted(given)
    notes += [
        f"--spec {spec} is not read; its layers are taken as Megatron-LM's own, as the arguments say" for spec in specs
    ]
    return tuple(notes)


def _stated(dest: str, value: Any, by_dest: Mapping[str, Argument]) -> bool:
    return value != by_dest[dest].default and value not in (None, False)


UNMODELLED = {
    "optimizer": ("soap", "adaptive_muon"),
    "moe_router_load_balancing_type": ("quantile_balancing",),
    "megatron_fsdp_main_params_dtype": ("bf16", "fp16"),
    "megatron_fsdp_main_grads_dtype": ("fp16",),
    "moe_flex_dispatcher_backend": ("ncclep",),
}
"""Values that Megatron-LM 0.19.2 has and the engine does not."""


def refuse_values(given: Mapping[str, Any]) -> None:
    """Refuses values of Megatron-LM's that are not modelled. Raises UnsupportedError."""
    for dest, values in UNMODELLED.items():
        value = given.get(dest)
        for one in value if isinstance(value, list) else [value]:
            if one in values:
                raise UnsupportedError(f"Megatron argument {dest}={one} is not modelled")


def argument_class(dest: str) -> str:
    """ "modelled", "irrelevant" to memory, or "not modelled": refused by name, or ignored with a warning.

    An argument that is not modelled is accepted where its value is Megatron's default.
    """
    if dest in known_settings() or dest in DERIVED or dest in READ or dest == "tokenizer_type":
        return "modelled"
    if dest in UNCOUNTED:
        return IGNORED
    if is_harmless(dest):
        return "irrelevant"
    other_program = arguments()[1][dest].category == "out_of_scope" and dest not in _OTHER_PROGRAMS
    return IGNORED if other_program else "not modelled, refused"


def no_setting(name: str, said: str) -> str:
    """One sentence for a name that no setting has, as it was `said`, and Megatron-LM knows; "" for one that it does not."""
    argument = arguments()[0].get(name) or arguments()[1].get(name)
    dest = argument.dest if argument else name
    if is_harmless(dest):
        return f"{said} does not change memory; leave it out"
    if dest in UNSUPPORTED or (argument and argument_class(dest) not in ("modelled", IGNORED)):
        return f"{said} is not modelled{known_of(dest)}"
    if argument is None:
        return ""
    if dest != name and dest in known_settings():
        return f"{said} is the setting {dest} here"
    if argument_class(dest) == IGNORED:
        return f"{said} is not modelled, and ignored among Megatron-LM's arguments; leave it out"
    return f"{said} is an argument of Megatron-LM and no setting; give it among the arguments of a run, behind --"


def is_harmless(name: str) -> bool:
    """Whether a field of Megatron's classes, or an argument of Megatron-LM, changes nothing that is modelled."""
    argument = arguments()[1].get(name) or arguments()[0].get(name)
    return name in HARMLESS or (argument is not None and argument.category == "irrelevant")


def passes_over(argument: Argument) -> bool:
    """Whether the value of an argument changes nothing that is counted, so that it may be whatever it is."""
    return argument_class(argument.dest) in ("irrelevant", IGNORED)


def _at_most(value: Any, most: Any) -> bool:
    return isinstance(value, int) and isinstance(most, int) and value <= most


def known_spec(value: Any) -> bool:
    """Whether a layer spec is the one of hybrid models, which their patterns describe; other specs are Python code."""
    return _spec_words(value) in HYBRID_SPECS


def _spec_words(value: Any) -> tuple[str, ...]:
    words = value if isinstance(value, list | tuple) else str(value).strip("[]").replace(",", " ").split()
    return tuple(map(str, words))


HYBRID_SPECS = frozenset(
    {
        ("megatron.core.models.mamba.mamba_layer_specs", "mamba_stack_spec"),
        ("megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec"),
    }
)
"""Source: Megatron-LM `megatron/core/models/hybrid/hybrid_layer_specs.py` and its older name."""
FOLLOWING_SPECS = frozenset({(f"mindspeed_llm.tasks.models.spec.{name}",) for name in ("deepseek_spec", "qwen3_spec")})
"""Layer specs of a fork that are made of Megatron-LM's own layers as its arguments say. Source: Ascend/MindSpeed-LLM
`mindspeed_llm/tasks/models/spec/`."""

READ = frozenset(
    {
        "checkpoint_activations", "batch_size", "model_parallel_size", "step_batch_size_schedule", "encoder_num_layers",
        "decoder_num_layers", "decoder_seq_length",
        "encoder_seq_length",
    }
)  # fmt: skip
"""Old arguments that stop today's program, and others that `readings.py` reads."""

_OTHER_PROGRAMS = frozenset({"perform_rl_step", "vision_pretraining", "bert_binary_head"})


HARMLESS = {
    **IRRELEVANT,
    "align_grad_reduce": "megatron/training/training.py:3540: when gradient reductions start, not their buffers",
    "ckpt_convert_format": "megatron/training/training.py:2269: converts a checkpoint and exits before any training step",
    "ckpt_convert_save": "megatron/training/training.py:2270: a path of the converted checkpoint",
    "ckpt_convert_update_legacy_dist_opt_format": "megatron/training/checkpointing.py:2594: "
    "how a legacy optimizer checkpoint is read, in host memory",
    "create_all_gather_group": "megatron/training/training.py:1713: one more NCCL communicator; no torch tensor",
    "decrease_batch_size_if_needed": "megatron/core/num_microbatches_calculator.py:369: "
    "how many microbatches, rounded down; not their size",
    "disable_jit_fuser": "megatron/training/global_vars.py:156: runs after imports, when decorators were already applied",
    "disable_symmetric_registration": "megatron/core/distributed/param_and_grad_buffer.py:1133: "
    "how NCCL registers buffers of the same size",
    "distributed_backend": "megatron/training/initialize.py:336: the library of the process groups; no torch tensor",
    "empty_unused_memory_level": "megatron/training/training.py:2463: frees cached blocks; allocated bytes stay the same",
    "eval_global_batch_size": "megatron/training/training.py:4195: how many forward-only microbatches an evaluation has",
    "flash_attention_version": "megatron/core/models/common/language_module/language_module.py:152: "
    "which FlashAttention kernel runs; all save output and log-sum-exp",
    "fp8_amax_compute_algo": "transformer_engine/pytorch/quantization.py:1082: the maximum or the newest of a history that exists",
    "fp8_wgrad": "megatron/core/fp8_utils.py:737: TransformerEngine's DelayedScaling has no such field and ignores it",
    "fsdp_manual_registration": "megatron/core/distributed/fsdp/src/megatron_fsdp/param_and_grad_buffer.py:2175: "
    "when the pool is registered with NCCL, not its size",
    "gradient_reduce_div_fusion": "megatron/core/distributed/fsdp/src/megatron_fsdp/param_and_grad_buffer.py:4746: "
    "scales in the collective or in place",
    "legacy_tokenizer": "main: megatron/training/arguments.py: of older releases; absent from 0.19.2 and from main's arguments",
    "log_params_norm": "megatron/training/training.py:3980: only logs; norms of main parameters that exist already",
    "merge_file": "megatron/core/tokenizers/utils/build_tokenizer.py:46: a file of the tokenizer",
    "moe_router_quantile_balancing_ema": "megatron/core/distributed/finalize_model_grads.py:409: a factor of the running quantile",
    "moe_single_grouped_bias": "megatron/core/extensions/transformer_engine.py:2205: the same biases in one parameter",
    "moe_single_grouped_weight": "megatron/core/extensions/transformer_engine.py:2202: the same weights in one parameter",
    "mtp_detach_heads": "megatron/core/transformer/multi_token_prediction.py:1823: gradients stop at MTP; it keeps the same tensors",
    "mtp_standalone": "megatron/core/pipeline_parallel/p2p_communication.py:322: stages exchange shapes of a few numbers first",
    "nccl_communicator_config_path": "megatron/core/parallel_state.py:187: options of NCCL communicators; no torch tensor",
    "no_persist_layer_norm": "megatron/training/argument_utils.py:304: which norm kernel; both save input and statistics",
    "non_persistent_ckpt_type": "megatron/training/checkpointing.py:616: where a checkpoint is written",
    "non_persistent_save_interval": "megatron/training/training.py:3280: how often a checkpoint is written",
    "openai_gelu": "megatron/training/arguments.py:2361: nothing reads it",
    "overlap_p2p_comm_warmup_flush": "megatron/core/pipeline_parallel/schedules.py:1571: "
    "receives earlier, outside the steady phase that peaks",
    "pad_vocab_size": "megatron/training/argument_utils.py:479: the model builder pads without asking it",
    "reset_attention_mask": "megatron/core/datasets/gpt_dataset.py:829: which entries are masked, not the mask's size",
    "reset_position_ids": "megatron/core/datasets/gpt_dataset.py:832: values of position ids, not how many",
    "sharp_enabled_group": "megatron/core/parallel_state.py:955: which NCCL group reduces in the switches; no torch tensor",
    "special_tokens": "megatron/core/tokenizers/utils/build_tokenizer.py:56: words of the tokenizer; the vocabulary is read by itself",
    "te_rng_tracker": "megatron/core/tensor_parallel/random.py:380: which class keeps the random states",
    "tiktoken_num_special_tokens": "megatron/core/tokenizers/text/libraries/tiktoken_tokenizer.py:148: "
    "a part of the vocabulary size, not on top",
    "tokenizer_model": "megatron/core/tokenizers/utils/build_tokenizer.py:52: a file of the tokenizer",
    "tp_comm_bootstrap_backend": "megatron/training/initialize.py:238: how ranks find each other when userbuffers are built",
    "use_flash_attn": "megatron/training/arguments.py:2773: nothing reads it",
    "use_pytorch_profiler": "megatron/training/training.py:3733: only profiles; events are kept in host memory",
    "use_sharp": "megatron/core/parallel_state.py:778: NCCL reduces in the switches; no torch tensor",
    "vocab_extra_ids": "megatron/training/config/training_config.py:670: nothing reads it",
    "vocab_file": "megatron/core/tokenizers/utils/build_tokenizer.py:45: a file of the tokenizer",
}
"""Arguments without an effect of their own on what is modelled here."""
