"""Words that people type, in Megatron's: each means settings, or is answered with the right word.

Every door takes them: the command line, Python, MCP, HTTP and the page. Axes of `plan` have words of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ..errors import ConfigError
from ..job.choices import RECOMPUTE_MODULES
from ..wording import any_of, shown, whole
from .spellings import FORMATS, known_kernel
from .transformer_config import RENAMED

Meaning = Callable[[Any], dict[str, Any]]


class Word(NamedTuple):
    """An everyday word: what it means, and whether it stands alone on a command line or takes a whole number."""

    means: Meaning
    help: str
    alone: bool = False
    number: bool = False


def named(name: str) -> Meaning:
    """Another name of a setting."""
    return lambda value: {name: value}


def _renames(name: str, *, alone: bool = False, number: bool = False) -> Word:
    """A word for a setting, which is its help too."""
    return Word(named(name), name, alone, number)


def low_precision(recipe: str) -> dict[str, Any]:
    """The settings of an fp8 or fp4 recipe by its name."""
    if recipe == "nvfp4":
        return {"fp4": "e2m1"}
    return {"fp8": FORMATS[recipe], "fp8_recipe": recipe}


def _precision(value: Any) -> dict[str, Any]:
    if value in ("bf16", "fp16", "fp32"):
        return {"params_dtype": value}
    if value in (*FORMATS, "nvfp4"):
        return low_precision(value)
    raise ConfigError(f"precision={shown(value)} is not one of {any_of(('bf16', 'fp16', 'fp32', *FORMATS, 'nvfp4'))}")


def _recompute(value: Any) -> dict[str, Any]:
    if value in (None, "none", False):
        return {"recompute_granularity": None}
    if value in ("full", "selective"):
        return {"recompute_granularity": value}
    modules = value.replace("+", ",").replace(",", " ").split() if isinstance(value, str) else value
    if not isinstance(modules, list | tuple) or not set(modules) <= set(RECOMPUTE_MODULES):
        known = any_of(("full", "selective", "none", *RECOMPUTE_MODULES))
        raise ConfigError(f"recompute={shown(value)} is not one of {known}")
    return {"recompute_granularity": "selective", "recompute_modules": tuple(modules)}


def _adapter(kind: str) -> Meaning:
    def means(value: Any) -> dict[str, Any]:
        rank = whole(str(value)) if not isinstance(value, bool) else None
        return {"peft": kind, **({"peft_dim": rank} if rank else {})} if value else {"peft": "none"}

    return means


def _zero(value: Any) -> dict[str, Any]:
    stage = whole(str(value))
    if stage in (0, 1):
        return {"use_distributed_optimizer": stage == 1}
    raise ConfigError(
        f"zero={value}: ZeRO-1 is use_distributed_optimizer; ZeRO-2 and ZeRO-3 are use_megatron_fsdp with "
        "data_parallel_sharding_strategy=optim_grads and optim_grads_params"
    )


def _fp4_recipe(value: Any) -> dict[str, Any]:
    if value != "nvfp4":
        raise ConfigError(f"fp4_recipe={shown(value)} is not modelled; only nvfp4 is")
    return {}


def _dp(value: Any) -> dict[str, Any]:
    raise ConfigError(
        f"dp={value}: the data parallel size follows from the GPUs, num_gpus / (tp * cp * pp); give num_gpus"
    )


def _switch(**settings: Any) -> Word:
    """An argument of Megatron-LM that takes no value, and the settings that it stands for."""
    said = ", ".join(
        f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in settings.items()
    )
    return Word(lambda value: dict(settings) if value else {}, said, alone=True)


WORDS: dict[str, Word] = {
    "attention_backend": Word(known_kernel, "flash, fused, unfused, local or auto: attention_kernel"),
    "recompute_activations": _switch(recompute_granularity="selective"),
    "moe_layer_recompute": Word(lambda value: _recompute("moe") if value else {}, "recompute_modules=moe", alone=True),
    "moe_enable_deepep": _switch(moe_flex_dispatcher_backend="deepep"),
    "no_rope_fusion": _switch(apply_rope_fusion=False),
    "no_bias_swiglu_fusion": _switch(bias_activation_fusion=False),
    "no_bias_gelu_fusion": _switch(bias_activation_fusion=False),
    "mbs": _renames("micro_batch_size", number=True),
    "gbs": _renames("global_batch_size", number=True),
    "seq": _renames("seq_length", number=True),
    "seq_len": _renames("seq_length", number=True),
    "sp": _renames("sequence_parallel", alone=True),
    "cuda_graph_scope": _renames(RENAMED["cuda_graph_scope"]),
    "fp4_recipe": Word(_fp4_recipe, "nvfp4, the only one"),
    "dp": Word(_dp, "follows from num_gpus"),
    "zero": Word(_zero, "1: use_distributed_optimizer"),
    "zero_stage": Word(_zero, "1: use_distributed_optimizer"),
    "lora": Word(_adapter("lora"), "peft=lora", alone=True),
    "dora": Word(_adapter("dora"), "peft=dora", alone=True),
    "recompute": Word(_recompute, "full, selective, none, or recompute_modules"),
    "precision": Word(_precision, "bf16, fp16, fp32, or a recipe of fp8 or fp4"),
}


def in_megatrons_words(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with everyday words in Megatron's. Raises ConfigError where one contradicts a setting that is given too."""
    found = {name: value for name, value in settings.items() if _word(name) not in WORDS}
    for name, value in settings.items():
        word = WORDS.get(_word(name))
        if word is None or (value is None and _word(name) != "recompute"):
            continue
        for meant, its in word.means(value).items():
            if meant in found and found[meant] != its:
                raise ConfigError(f"{name}={shown(value)} contradicts {meant}={shown(found[meant])}; give one")
            found[meant] = its
    return found


def _word(name: str) -> str:
    return str(name).replace("-", "_")
