"""Keys of a framework in Megatron's names: a table for each section, and what is said of keys that it does not have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from ...job.layout import SHORT
from ...wording import says_nothing, shown
from ..environment import VARIABLES
from ..field_names import meant
from ..file_keys import names_files, not_followed
from ..megatron.classes import is_harmless
from ..setting_names import full_name, known_settings
from ..spellings import router_dtype
from ..transformer_config import UNCOUNTED, UNSUPPORTED
from .hydra import Tree
from .words import scalar

SAME = ""
"""In a table: the key is a setting of ours by the same name."""
MOST_NAMED = 12
"""Keys that a warning names."""
DECIDES = re.compile(
    r"offload|recompute|checkpoint_act|activation_check|lora|adapter|swap|zero_stage|fsdp|quantiz|fp8|fp4|int4|freeze|frozen|trainable|"
    r"pattern|layer_types|hetero|param_dtype|optimizer_type|parallel_size|micro_batch_size"
)
"""In names of keys that decide memory: one of these that no table has is refused, never passed over."""
SPELLED = {"attention_backend": SAME, "moe_router_force_load_balancing": SAME}
"""Fields of TransformerConfig that are no settings: `spellings.py` reads them."""
COMMON = "adam_* dataloader_* distributed_* lr* tensorboard_* wandb_* weight_decay*"
"""Keys of schedules, data and logs that are without effect in every framework; `megatron/classes.py` has Megatron-LM's own."""
WORKERS = "dataloader_num_workers"
"""What frameworks on Hugging Face's classes call `num_workers`."""
AUX_LOSS = 1e-3
"""The coefficient of a balancing loss that a file chooses without one."""
POWER = re.compile(r"[+-]?[0-9]+[eE][+-]?[0-9]{1,3}")
"""A number that YAML 1.1 takes for a text, and frameworks for a number."""
YES = frozenset(("true", "t", "yes", "y", "1"))
"""Words that Hugging Face's parser takes for true (HfArgumentParser, string_to_bool)."""
NEVER = "save_interval"
"""What is off below 1."""
NO_OTHER_NAMES: Mapping[str, str] = {}


def translated(
    values: Mapping[str, Any], nothing: str = "", where: str = "", table: Mapping[str, str] = NO_OTHER_NAMES
) -> tuple[dict[str, Any], list[str], list[str]]:
    """Settings by Megatron's names from keys of a framework; keys that are unknown, and those that are refused.

    `table` gives our name of a key, "" for the same. `nothing` are keys without effect and those that are read elsewhere, in one text
    with blanks; * stands for any ending, but for no setting of ours, which is named whole or read. A key that is one is the framework's
    too: they hand Megatron's fields on. Nulls are left out.
    """
    settings: dict[str, Any] = {}
    unknown: list[str] = []
    refused: list[str] = []
    exact, starts = patterns(f"{nothing} {COMMON}")
    for key, value in values.items():
        if key == WORKERS and value is not None:
            settings["num_workers"] = value
        if key in exact or (key.startswith(starts) and key not in known_settings()):
            continue
        if key not in table and key in SHORT and not DECIDES.search(key):
            unknown.append(f"{where}{key} (is it {SHORT[key]}?)")
            continue
        name = table[key] or key if key in table else full_name(key)
        if key in table or name in known_settings() or name in UNSUPPORTED or name in UNCOUNTED:
            if value is not None and not (name == NEVER and isinstance(value, int) and value < 1):
                settings[name] = scalar(value) if isinstance(value, str) and POWER.fullmatch(value) else value
        elif is_harmless(name) or says_nothing(value):
            continue
        elif names_files(key, value):
            refused.append(not_followed(f"{where}{key}", value))
        elif decides := _deciding(key, value):
            path, held = decides
            near = SHORT.get(key) or meant(path.rpartition(".")[2], known_settings())
            guess = f" (is it {near}?)" if near else ""
            refused.append(f"{where}{path}={shown(str(held))} decides memory and is not modelled{guess}")
        else:
            unknown.append(f"{where}{key}")
    if "moe_router_dtype" in settings:
        settings |= router_dtype(settings.pop("moe_router_dtype"))
    return settings, unknown, refused


def _deciding(key: str, value: Any) -> tuple[str, Any] | None:
    """The path and the value of a key that decides memory: of this one, or of one of its section."""
    if DECIDES.search(key):
        return key, value
    for inner, held in value.items() if isinstance(value, Mapping) else ():
        if not says_nothing(held) and (found := _deciding(str(inner), held)):
            return f"{key}.{found[0]}", found[1]
    return None


class Section(NamedTuple):
    """A section of a file: its path, its table and its keys without effect, as `translated` takes them."""

    path: str
    nothing: str = ""
    table: Mapping[str, str] = {}


def of_ddp(path: str) -> Section:
    """A section of DistributedDataParallelConfig."""
    return Section(path, table={"bucket_size": "ddp_bucket_size"})


def of_transformer(path: str, nothing: str) -> Section:
    """A section of TransformerConfig."""
    return Section(path, nothing, SPELLED)


def of_sections(tree: Tree, sections: Iterable[Section]) -> tuple[dict[str, Any], list[str], list[str]]:
    """What `translated` gives of several sections, of which the last ones hold."""
    settings: dict[str, Any] = {}
    unknown: list[str] = []
    refused: list[str] = []
    for path, nothing, table in sections:
        found, strange, wrong = translated(tree.section(path), nothing, f"{path}.", table)
        settings |= found
        unknown += strange
        refused += wrong
    return settings, unknown, refused


def balancing(tree: Tree, path: str) -> dict[str, Any]:
    """The coefficient of the balancing loss that a section chooses. RL frameworks balance only where it is chosen."""
    chosen = tree.at(f"{path}.moe_router_load_balancing_type", "none")
    given = tree.has(f"{path}.moe_aux_loss_coeff")
    return {} if chosen == "none" or given else {"moe_aux_loss_coeff": AUX_LOSS}


def model_ranks(tree: Tree, path: str) -> int:
    """GPUs that hold one copy of the model's activations and weights: tensor, pipeline and context parallel ranks of a section, "" for
    the top."""
    axes = ("tensor_model", "pipeline_model", "context")
    at = f"{path}." if path else ""
    return prod(tree.count(f"{at}{axis}_parallel_size", 1) or 1 for axis in axes)


def given(values: Mapping[str, Any], key: str, default: Any) -> Any:
    """The value of a key, of which null is none."""
    value = values.get(key)
    return default if value is None else value


def switched(values: Mapping[str, Any], key: str, default: bool = False) -> bool:
    """Whether a key is on."""
    value = values.get(key)
    return default if value is None else str(value).lower() in YES


def frozen(values: Mapping[str, Any], names: Mapping[str, tuple[str, ...]]) -> dict[str, bool]:
    """What of towers is frozen, of frameworks that freeze it where a run says nothing: our names by their key."""
    return {ours: switched(values, key, True) for key, several in names.items() for ours in several}


def by_habit(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings that a run chose, and those of experts, which files carry for models without experts too and which nobody chose there."""
    experts = {
        name: value for name, value in settings.items() if name.startswith("moe_") and not isinstance(value, list)
    }
    return {name: value for name, value in settings.items() if name not in experts}, experts


def decisive(*environments: Mapping[str, Any]) -> dict[str, str]:
    """Variables that memory depends on, of which the last ones hold."""
    return {name: str(value) for env in environments for name, value in env.items() if name in VARIABLES}


def patterns(nothing: str) -> tuple[frozenset[str], tuple[str, ...]]:
    """Exact keys, and beginnings of keys."""
    keys = nothing.split()
    return frozenset(key for key in keys if not key.endswith("*")), tuple(key[:-1] for key in keys if key.endswith("*"))


def passed_over(unknown: Sequence[str], framework: str) -> tuple[str, ...]:
    """The warning about keys that no table has; one that is named with what is meant is named once."""
    if not unknown:
        return ()
    guessed = {one.partition(" (")[0] for one in unknown if "(" in one}
    unknown = list(dict.fromkeys(one for one in unknown if one not in guessed))
    named = ", ".join(unknown[:MOST_NAMED])
    more = f" and {len(unknown) - MOST_NAMED} more" if len(unknown) > MOST_NAMED else ""
    return (f"unknown keys of {framework} passed over: {named}{more}",)
