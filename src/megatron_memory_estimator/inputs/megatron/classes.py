"""Which arguments are modelled, which are irrelevant to memory, and which are refused or ignored with a warning.

Source: Megatron-LM `megatron/training/arguments.py` (parser and validate_args).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import UnsupportedError
from ...wording import LONGEST_SHOWN, plain, shown
from ..setting_names import known_settings
from ..transformer_config import UNCOUNTED, uncounted
from .derive import DERIVED
from .harmless import HARMLESS
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
        raise UnsupportedError(f"Megatron {verb.format(', '.join(refused))} not modelled")
    notes = [f"not modelled and ignored: {', '.join(sorted(ignored))}"] if ignored else []
    notes += uncounted(given)
    notes += [
        f"--spec {spec} is not read; its layers are taken as Megatron-LM's own, as the arguments say" for spec in specs
    ]
    return tuple(notes)


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
    if dest in HARMLESS or arguments()[1][dest].category == "irrelevant":
        return "irrelevant"
    other_program = arguments()[1][dest].category == "out_of_scope" and dest not in _OTHER_PROGRAMS
    return IGNORED if other_program else "not modelled, refused"


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
