"""Random jobs, most of them legal: degrees are built from divisors, and a feature is drawn with what it needs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, count
from math import gcd
from random import Random
from typing import Any, NamedTuple

from megatron_memory_estimator import TrainingJob
from megatron_memory_estimator.job.model import Model
from megatron_memory_estimator.job.variants import bare

from .random_models import Choice, Settings, models

GPUS = {"H100": 90, "A100": 80, "H200": 90, "B200": 100, "L40S": 89, "GB300": 103}
"""Compute capability, times ten."""
RECIPES = {"delayed": 89, "tensorwise": 89, "blockwise": 90, "mxfp8": 100}


class RandomJob(NamedTuple):
    """A job as a user would write it."""

    name: str
    num_gpus: int
    settings: Settings

    def job(self, *, backwards: bool = False) -> TrainingJob:
        """The job; `backwards` gives its settings in the opposite order."""
        items = list(self.settings.items())
        settings = dict(reversed(items) if backwards else items)
        if self.name:
            return TrainingJob.from_hf(self.name, self.num_gpus, **settings)
        return TrainingJob.from_config(settings, self.num_gpus)

    def __repr__(self) -> str:
        return f"RandomJob({self.name!r}, {self.num_gpus}, {self.settings!r})"


def random_jobs(first: int) -> Iterator[RandomJob]:
    """Jobs without end, each from a seed of its own and no two alike: the same in every run of the tests."""
    seen: set[str] = set()
    for number in count(first):
        drawn = random_job(Random(number))
        if repr(drawn) not in seen:
            seen.add(repr(drawn))
            yield drawn


def random_job(random: Random) -> RandomJob:
    """A model, a layout and settings."""
    choice = Choice(random)
    pp = choice.of(1, 1, 2, 2, 3, 4)
    vpp = choice.of(1, 1, 2, 3) if pp > 1 else 1
    counts, way = stages(choice, pp, vpp)
    drawn = models(choice, sum(counts), tuple(accumulate(counts))[:-1])
    model, settings = drawn.model, dict(drawn.settings)
    mtp = settings.get("mtp_num_layers") or 0
    hybrid = "hybrid_layer_pattern" in settings
    experts = model.num_moe_experts or 0
    settings.update({} if hybrid else split(way, pp, vpp, counts, mtp))
    if hybrid and pp == 1:
        settings["hybrid_layer_pattern"] = settings["hybrid_layer_pattern"].replace("|", "")
    gpu = choice.of(*GPUS)
    fp32 = choice.rarely(1)
    own = (model.norm_placement, model.core_attention) != ("pre", "transformer_engine")
    local = (
        not own
        and not hybrid
        and experts == 0
        and "experimental_attention_variant" not in settings
        and choice.rarely(1)
    )
    tp = choice.of(*tensor_parallel(model))
    cp = 1 if local or fp32 else choice.of(*context_parallel(model, tp))
    ep = choice.of(*(n for n in (1, 2, 4, 8) if experts and experts % n == 0)) if experts else 1
    etp = choice.of(1, tp) if experts and not model.add_bias_linear and model.moe_ffn % tp == 0 else 1
    fixed = etp * ep // gcd(tp * cp, etp * ep)
    dp = fixed * choice.of(1, 2, 3, 4)
    settings.update(
        gpu=gpu, pipeline_model_parallel_size=pp, tensor_model_parallel_size=tp, context_parallel_size=cp,
        sequence_parallel=tp > 1 and (experts > 0 or choice.of(True, True, False)),
    )  # fmt: skip
    if experts:
        settings.update(expert_model_parallel_size=ep, expert_tensor_parallel_size=etp)
    if cp > 1:
        settings["cp_comm_type"] = communication(choice, model, tp, cp)
    micro = choice.of(1, 2, 4)
    unit = 2 * cp * tp
    most = model.max_position_embeddings or 8192
    settings["micro_batch_size"] = micro
    settings["seq_length"] = min(choice.of(256, 1024, 2048, 4096, unit * choice.of(9, 33, 60)), most // unit * unit)
    if choice.rarely(14):
        steps = pp * choice.of(1, 2, 3) if vpp > 1 else choice.of(1, 2, pp, 2 * pp + 1)
        settings["global_batch_size"] = steps * micro * dp
    j = Job(choice, model, settings, pp, vpp, tp, cp, ep, dp, mtp, hybrid, fp32, local, GPUS[gpu])
    j.draw()
    return RandomJob(drawn.name, tp * cp * pp * dp, settings)


def stages(choice: Choice, pp: int, vpp: int) -> tuple[list[int], str]:
    """Layers of each chunk in the order of the layers, and how the split is written."""
    each = choice.of(1, 2, 1 if pp * vpp > 6 else 3)
    counts = [each] * (pp * vpp)
    way = choice.of("even", "even", "chunks", "layout", "first and last", "embedding", "loss") if pp > 1 else "even"
    if way in ("embedding", "loss", "first and last") and (each == 1 or (way == "first and last" and pp == 2)):
        way = "even"
    if way == "layout" and len(counts) > 2 and each > 1:
        counts[0], counts[1] = each - 1, each + 1
    elif way in ("embedding", "loss"):
        counts[0 if way == "embedding" else -1] -= 1
    return counts, way


def split(way: str, pp: int, vpp: int, counts: list[int], mtp: int) -> Settings:
    """The pipeline in one of its spellings."""
    each = counts[-1]
    if way == "layout":
        words = ["t" * n for n in counts]
        words[0] = "E" + words[0]
        words[-1] += "m" * mtp + "L"
        return {"pipeline_model_parallel_layout": "|".join(words)}
    if way == "chunks" and vpp > 1:
        return {"num_layers_per_virtual_pipeline_stage": each}
    found: Settings = {"virtual_pipeline_model_parallel_size": vpp} if vpp > 1 else {}
    if way == "first and last":
        found.update(
            num_layers_in_first_pipeline_stage=vpp * (each - 1), num_layers_in_last_pipeline_stage=vpp * (each + 1)
        )
    elif way in ("embedding", "loss"):
        found[f"account_for_{way}_in_pipeline_split"] = True
    return found


def tensor_parallel(model: Model) -> list[int]:
    """Legal tensor parallel sizes."""
    if model.qk_layernorm_scope == "projection":
        return [1]
    every = shapes(model)
    most = min((one.groups for one in every if one.value_channels), default=8)
    legal = (tp for tp in (1, 2, 4, 8) if tp <= most)
    return [tp for tp in legal if all(not any(n % tp for n in widths(one)) and groups_divide(one, tp) for one in every)]


def shapes(model: Model) -> list[Model]:
    """The model as each of its layers may have it."""
    return [model.variant(name) for name in ("", *dict(model.variants))]


def widths(model: Model) -> list[int]:
    """What tensor parallelism divides."""
    mixers = {bare(kind).split("+")[0] for kind in model.kinds}
    found = [model.num_attention_heads] if mixers & {"gqa", "mla", "dsa"} else []
    if any(bare(kind).endswith("dense") for kind in model.kinds) or model.num_moe_experts:
        found.append(model.ffn)
    found += [model.moe_shared_expert_intermediate_size or 8, model.hidden_size]
    if "mamba" in mixers:
        found += [model.mamba_heads, model.mamba_num_groups]
    if mixers & {"gdn", "gdn2"}:
        found += [model.linear_num_key_heads, model.linear_num_value_heads]
    return found


def groups_divide(model: Model, tp: int) -> bool:
    """Whether query groups and ranks divide one another, and the rows of a narrow qkv divide."""
    return not ((model.groups % tp and tp % model.groups) or model.qkv_rows % tp)


def context_parallel(model: Model, tp: int) -> list[int]:
    """Legal context parallel sizes."""
    if model.core_attention != "transformer_engine" or model.value_channels:
        return [1]
    kinds = " ".join(model.kinds)
    heads = [model.mamba_heads] if "mamba" in kinds else []
    heads += [model.linear_num_key_heads, model.linear_num_value_heads] if "gdn" in kinds else []
    fits = [cp for cp in (1, 1, 2, 4) if not any(n % (tp * cp) for n in heads)]
    if "mamba" in kinds:
        shared = model.mamba_num_groups
        fits = [cp for cp in fits if not (shared % (tp * cp) and tp * cp % shared)]
    return fits


def communication(choice: Choice, model: Model, tp: int, cp: int) -> str:
    """How context parallel ranks exchange keys."""
    if any(kind.startswith("dsa") for kind in model.kinds):
        return "all_gather"
    every = shapes(model)
    heads = [
        n
        for one in every
        for n in (one.num_attention_heads, one.num_attention_heads if one.multi_latent_attention else one.groups)
    ]
    redistributed = ["a2a"] if not any(n % (tp * cp) for n in heads) else []
    ring = [] if any(one.sliding_window for one in every) else ["p2p"]
    return str(choice.of(*ring, "all_gather", *redistributed))


class Job(NamedTuple):
    """A job whose model and layout are drawn; the rest is added to `settings`."""

    choice: Choice
    model: Model
    settings: Settings
    pp: int
    vpp: int
    tp: int
    cp: int
    ep: int
    dp: int
    mtp: int
    hybrid: bool
    fp32: bool
    local: bool
    capability: int

    @property
    def moe(self) -> bool:
        """Whether a layer has routed experts."""
        pattern = self.settings.get("hybrid_layer_pattern")
        return bool(self.model.num_moe_experts) and (pattern is None or "E" in pattern)

    def draw(self) -> None:
        """Everything that is neither model nor layout."""
        from .random_settings import PARTS

        for part in PARTS:
            part(self)

    def set(self, **settings: Any) -> None:
        """More settings."""
        self.settings.update(settings)

    def has(self, name: str) -> bool:
        """Whether a setting is on."""
        return bool(self.settings.get(name))
