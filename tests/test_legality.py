"""Violations: a rule is the same for every layout, its sentence has the numbers."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from megatron_memory_estimator import LayoutError, TrainingJob, estimate
from megatron_memory_estimator.job.layout import Layout
from megatron_memory_estimator.legality import check, pipeline_sides, violations
from megatron_memory_estimator.legality.pipeline import (
    FIRST,
    LAST,
    LAYOUT,
    VPP,
    balanced_split,
    nearest_counts,
    pipeline,
)
from megatron_memory_estimator.modules.context import Context
from megatron_memory_estimator.rules import CP, PP, TP, Violation, broken

from .broken_layouts import Broken, collected

NUMBER_WITH_NAME = re.compile(r"=(?=\d)[\d*.=]+")


def test_a_name_in_braces_is_a_name_in_the_rule_and_a_number_in_the_text() -> None:
    heads = broken("heads-over-tp", {"num_attention_heads": 40, TP: 16}, use=8)
    assert heads == Violation(
        "num_attention_heads is not divisible by tensor_model_parallel_size",
        "num_attention_heads=40 is not divisible by tensor_model_parallel_size=16; use tensor_model_parallel_size 8",
        "heads-over-tp",
    )
    assert heads.said == f"{heads.text} [heads-over-tp]"
    assert broken("fp8-or-fp4").text == "fp8 and fp4 exclude each other; give one"
    assert broken("layout-ends").text == broken("layout-ends").rule  # a rule that says what to do needs no fix
    assert broken("cp-comm-type-entries", entries=3, layers=4) == Violation(
        "cp_comm_type has entries: neither one nor one for each layer",
        "cp_comm_type has 3 entries: neither one nor one for each layer; give one, or one per layer (4)",
        "cp-comm-type-entries",
    )


@pytest.mark.parametrize(
    "name", ["Qwen/Qwen3-30B-A3B", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "deepseek-ai/DeepSeek-V3"]
)
def test_a_rule_has_no_number_of_a_layout(name: str) -> None:
    """Of layouts with four values of each degree; where a text has numbers beside their names only, its rule is what is left."""
    job = TrainingJob.from_hf(name, 1)
    rules: dict[str, set[str]] = {}
    for tp, pp, cp, ep in product((1, 3, 5, 7), repeat=4):
        degrees: dict[str, Any] = {
            "tensor_model_parallel_size": tp,
            "pipeline_model_parallel_size": pp,
            "context_parallel_size": cp,
            "expert_model_parallel_size": ep,
            "num_distributed_optimizer_instances": tp,
        }
        layout = dataclasses.replace(job.layout, world_size=16 * pp, **degrees)
        for one in violations(job.model, layout, job.training, 8):
            rules.setdefault(one.rule, set()).add(one.text)
            said = NUMBER_WITH_NAME.sub("", one.text.split(";")[0])
            assert said == one.rule or re.search(r"\d", said), one
    assert len(rules) >= 8
    assert any(len(texts) > 3 for texts in rules.values())
    assert not any(re.search(r"=\d", rule) for rule in rules)


def test_a_refusal_names_its_rules() -> None:
    job = TrainingJob.from_hf("Qwen/Qwen3-8B", 6)
    layout = dataclasses.replace(job.layout, tensor_model_parallel_size=3)
    with pytest.raises(LayoutError) as refused:
        check(Context(job.model, layout, job.training, job.kernel), job.gpu, 1)
    assert len(refused.value.rules) == len(refused.value.reasons) > 1
    assert refused.value.rules[0] == "num_attention_heads is not divisible by tensor_model_parallel_size"
    assert refused.value.reasons[0].startswith(
        "num_attention_heads=32 is not divisible by tensor_model_parallel_size=3;"
    )


TORN = re.compile(r" not$| of$|by \*|than layers|of fewer| by ;|  |^ | $|\(\)|\{|\}|=$|=,| , | \.|,$")
CONSTANTS = re.compile(r"_size=1\b|recompute_num_layers=1\b")
"""Numbers of rules: with their names, what a rule asks for."""
SAID_BY_THE_RULE = re.compile(
    r" needs? | excludes? |"
    r"is not modelled|must (be|not|begin|hold|have)|does not work|which need|has a decoder layer|the most that is accepted"
)
"""What says itself what to do, without a fix behind it."""


def test_rules_are_sentences_without_the_numbers_of_a_run() -> None:
    """Of every violation of seeded runs of random models with random settings."""
    rules = {one.violation.rule for one in collected()}
    assert len(rules) > 180
    assert not list(filter(TORN.search, rules))
    assert not [rule for rule in rules if re.search(r"=\d", CONSTANTS.sub("", rule))]
    several = [
        rule for rule in rules if len({one.violation.text for one in collected() if one.violation.rule == rule}) > 1
    ]
    assert len(several) > 60


def test_texts_have_the_numbers_of_their_rule_and_say_what_to_do() -> None:
    for one in collected():
        rule, text, _ = one.violation
        said, _, fix = text.partition("; ")
        assert not TORN.search(said) and not TORN.search(fix), text
        assert fix or SAID_BY_THE_RULE.search(said), text
        assert said == rule or re.search(r"\d", said), text
        assert not re.search(r"\b1 (layer|stage|segment)s\b|\ba multiple$|a divisor$", text), text


SPLIT = re.compile(r"^(?!num_layers_at_).*num_layers|layers of a|stages remain|layers remain|layers that remain")
"""Rules of the split of layers over stages and chunks."""
PER_CHUNK = "num_layers_per_virtual_pipeline_stage"


def test_the_fix_of_a_split_is_accepted() -> None:
    """Applied, every alternative removes its violation and brings no other rule of the pipeline with it."""
    seen = 0
    for one in collected():
        rule, text, _ = one.violation
        fix = text.partition("; ")[2]
        if LAYOUT in rule or not SPLIT.search(rule) or not re.match(r"use|leave|the two", fix):
            continue
        before = pipeline_rules(one)
        for changes in alternatives(fix, one.layout):
            seen += 1
            assert pipeline_rules(one, **changes) <= before - {rule}, (text, changes)
    assert seen > 500


def test_numbers_of_a_fix_are_accepted() -> None:
    """`A=3 is not divisible by B=2; use 1 or 3`, `use a multiple of 2`: the numbers are B's and A's."""
    found: set[str] = set()
    for one in collected():
        rule, text, _ = one.violation
        fix = text.partition("; ")[2]
        names = re.match(r"(\w+) (?:is not divisible by|does not divide|must lie between|and) (\S+?),?(?: |$)", rule)
        if names is None or SPLIT.search(rule) or re.search("^num_gpus|need|exclude|say the same", rule):
            continue
        if one.model.layer_variants is not None:
            continue  # the numbers are those of one shape of layers, and another one may have others
        divided, by = names.groups()
        multiple = re.match(r"use a (?:\w+ that is a )?multiple of (\d+)$", fix)
        numbers = [int(n) for n in re.findall(r"\d+", fix)]
        of = divided if multiple or "must lie" in rule or "instances" in rule else by.split("*")[0]
        assert numbers, text
        for number in numbers:
            changes = {of: number, **({CP: 1} if "*" in by and not multiple else {})}
            if of == divided or hasattr(one.layout, of) or hasattr(one.model, of):
                found.add(rule)
                assert rule not in one.rules(**changes), (text, changes)
    assert len(found) > 12


def pipeline_rules(one: Broken, **changes: Any) -> set[str]:
    """The rules of the pipeline that a run breaks with other settings."""
    layout = dataclasses.replace(one.layout, **changes)
    return {broken.rule for broken in pipeline(one.model, layout, overlap_p2p_comm=one.training.overlap_p2p_comm)}


def alternatives(fix: str, layout: Layout) -> Iterator[dict[str, Any]]:
    """The settings of every alternative of a fix of a split."""
    if total := re.match(r"the two counts must add up to num_layers=(\d+)", fix):
        yield {FIRST: 1, LAST: int(total[1]) - 1}
        return
    for way in re.split(", or ", fix):
        if way.startswith("leave"):
            yield dict.fromkeys(re.findall("account\\w+", way), False) or dict.fromkeys((PER_CHUNK, FIRST, LAST))
        elif named := re.findall(r"(\w+)=(\d+)", way):
            without = dict.fromkeys((FIRST, LAST)) if " without " in way else {}
            yield {name: int(number) for name, number in named} | without
        else:
            name = PP if "stage" in way else VPP if getattr(layout, PER_CHUNK) is None else PER_CHUNK
            chunks = {VPP: None, PER_CHUNK: None} if "without" in way else {}
            yield from ({name: int(n), **chunks} for n in re.findall(r"\d+", way))


SENTENCES = [
    (
        "num_layers=8 with the embedding counted, 9, is not divisible by pipeline_model_parallel_size=2; "
        "use 1, 3 or 9 stages, or leave account_for_embedding_in_pipeline_split out",
        {PP: 2, "account_for_embedding_in_pipeline_split": True},
    ),
    (
        f"{FIRST}=9 is more than num_layers=8; use {FIRST}=7",
        {PP: 2, FIRST: 9},
    ),
    (
        f"with {FIRST}=2 and {LAST}=2 no stages remain for 4 of num_layers=8; the two counts must add up to num_layers=8",
        {PP: 2, FIRST: 2, LAST: 2},
    ),
    (
        "cp_comm_type a2a+p2p needs num_query_groups=2 to be divisible by tensor_model_parallel_size times the all-to-all size, 1*4=4; "
        "use p2p or all_gather",
        {CP: 8, "cp_comm_type": ("a2a+p2p",), "hierarchical_context_parallel_sizes": (4, 2)},
    ),
    ("expert_model_parallel_size=2 needs a MoE model; set num_moe_experts or use 1", {"expert_model_parallel_size": 2}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "changes"), SENTENCES)
def test_sentences(text: str, changes: dict[str, Any]) -> None:
    config = {
        "num_layers": 8,
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "num_query_groups": 2,
        "vocab_size": 1024,
    }
    job = TrainingJob.from_config({**config, "seq_length": 4096}, 16)
    found = violations(job.model, dataclasses.replace(job.layout, **changes), job.training, 8)
    assert [one.text for one in found] == [text]


@pytest.mark.parametrize(
    ("gpus", "etp", "ep", "fix"),
    [
        (12, 1, 8, "use a multiple of 8, or a smaller expert_model_parallel_size"),
        (16, 32, 1, "use a multiple of 32, or a smaller expert_tensor_parallel_size"),
        (8, 3, 3, "use a multiple of 9, or a smaller expert_model_parallel_size and expert_tensor_parallel_size"),
    ],
)
def test_the_degree_that_is_too_large_is_named(gpus: int, etp: int, ep: int, fix: str) -> None:
    job = TrainingJob.from_hf("Qwen/Qwen3-30B-A3B", 8)
    layout = dataclasses.replace(
        job.layout, world_size=gpus, expert_tensor_parallel_size=etp, expert_model_parallel_size=ep
    )
    found = [one.text for one in violations(job.model, layout, job.training, 8)]
    assert any(text.startswith(f"num_gpus={gpus} is not divisible by") and text.endswith(fix) for text in found), found


@pytest.mark.parametrize(
    ("gated", "func", "weighted", "fused"),
    [
        (True, "silu", False, True),
        (True, "quick_gelu", False, True),
        (True, "gelu", False, False),
        (False, "squared_relu", True, True),
        (False, "squared_relu", False, False),
        (False, "gelu", True, False),
    ],
)
def test_activations_of_fused_experts(gated: bool, func: str, weighted: bool, fused: bool) -> None:
    """Megatron-LM `megatron/core/transformer/moe/experts.py` (_is_fused_impl_supported)."""
    job = TrainingJob.from_hf("Qwen/Qwen3-30B-A3B", 8)
    model = dataclasses.replace(job.model, gated_linear_unit=gated, activation_func=func)
    training = dataclasses.replace(
        job.training, use_transformer_engine_op_fuser=True, use_fused_weighted_squared_relu=weighted
    )
    codes = {one.code for one in violations(model, job.layout, training, 8)}
    assert ("op-fuser-activation" in codes) != fused


def test_two_stages_are_several() -> None:
    job = TrainingJob.from_hf("Qwen/Qwen3-8B", 8)
    sides = [
        pipeline_sides(job.model, dataclasses.replace(job.layout, pipeline_model_parallel_size=pp)) for pp in (1, 2, 4)
    ]
    assert sides == [(False, False), (True, False), (True, False)]


def test_heads_of_latent_attention_are_no_rows_of_a_joint_weight() -> None:
    job = TrainingJob.from_hf("deepseek-ai/DeepSeek-V3", 24, tensor_model_parallel_size=3)
    found = [one.text for one in violations(job.model, job.layout, job.training, 1)]
    assert any(text.startswith("num_attention_heads=128 is not divisible by") for text in found)
    assert not any("linear_qkv" in text for text in found)


def splits(num_layers: int, pp: int, vp: int) -> Iterator[tuple[tuple[int | None, int | None], list[int]]]:
    """Every legal uneven split: the counts that are given, and the layers of each stage.

    Worked from Megatron's rule: what the ends leave is divided evenly over the other stages, and every stage over its chunks
    (`transformer_block.py`, get_num_layers_to_build).
    """
    counts = (None, *range(1, num_layers))
    for first, last in product(counts, counts):
        given = [count for count in (first, last) if count is not None]
        rest, middle = num_layers - sum(given), pp - len(given)
        if not given or rest < 0 or middle < 0 or (rest % middle if middle else rest):
            continue
        each = rest // middle if middle else 0
        sizes = [each if first is None else first, *[each] * (pp - 2), each if last is None else last]
        if min(sizes) > 0 and not any(size % vp for size in sizes):
            yield (first, last), sizes


SHAPES = [
    (num_layers, pp, vp) for num_layers in (5, 8, 9, 12, 13) for pp in (2, 3, 4) for vp in (1, 2) if num_layers >= pp
]


@pytest.mark.parametrize(("num_layers", "pp", "vp"), SHAPES)
def test_the_most_balanced_split_is_the_best_of_all(num_layers: int, pp: int, vp: int) -> None:
    possible = [
        (max(sizes), -min(sizes), sizes[0], sum(count is not None for count in given), given[0] is not None, given)
        for given, sizes in splits(num_layers, pp, vp)
        if pp > 2 or None in given
    ]
    found = balanced_split(num_layers, pp, vp)
    assert (found is None) == (not possible)
    if found is not None:
        best = min(one[:4] for one in possible)
        assert next(one for one in possible if one[5] == found)[:4] == best


@pytest.mark.parametrize(("num_layers", "pp", "vp"), SHAPES)
def test_counts_that_are_suggested_are_legal_and_the_nearest(num_layers: int, pp: int, vp: int) -> None:
    legal = dict(splits(num_layers, pp, vp))
    for asked in ((3, None), (None, 3), (2, 5), (1, 1), (num_layers, None)):
        near = nearest_counts(num_layers, pp, vp, asked)
        same = [given for given in legal if [one is None for one in given] == [one is None for one in asked]]
        if num_layers % vp:
            assert near is None
        elif pp == 2 and None not in asked:
            assert near == (min(asked[0] or 0, num_layers - 1), num_layers - min(asked[0] or 0, num_layers - 1))
        elif near is None:
            assert not same
        else:
            away = [sum(abs((a or 0) - (b or 0)) for a, b in zip(given, asked, strict=True)) for given in same]
            assert near in same
            assert None not in asked or sum(abs((a or 0) - (b or 0)) for a, b in zip(near, asked, strict=True)) == min(
                away
            )


def broken_codes(model: str, gpus: int, layout: dict[str, Any] | None = None, **training: Any) -> set[str]:
    """The codes of the rules that a changed run of a model breaks."""
    job = TrainingJob.from_hf(model, gpus)
    changed = dataclasses.replace(job.layout, **(layout or {}))
    settings = dataclasses.replace(job.training, **training)
    return {one.code for one in violations(job.model, changed, settings, 8)}


def test_what_is_on_the_legal_side_of_a_rule_is_accepted() -> None:
    assert broken_codes("Qwen/Qwen3-8B", 8, seq_length=1023) == set(), "an odd sequence without context parallelism"
    tall = {TP: 4, CP: 2, "sequence_parallel": True}
    assert broken_codes("Qwen/Qwen3-8B", 8, tall, seq_length=1008) == set()
    assert broken_codes("Qwen/Qwen3-8B", 8, tall, seq_length=1004) == {"sequence-over-tp-cp"}
    sized = {CP: 8, "cp_comm_type": ("a2a",), "hierarchical_context_parallel_sizes": (2, 4)}
    assert "cp-a2a-heads" in broken_codes("Qwen/Qwen3-30B-A3B", 8, sized), "4 groups on 8 ranks of one all-to-all"
    ends: dict[str, Any] = {"fp8": "e4m3", "fp8_recipe": "blockwise", "first_last_layers_bf16": True}
    assert broken_codes("Qwen/Qwen3-8B", 8, **ends, num_layers_at_start_in_bf16=0) == set()
    assert "negative" in broken_codes("Qwen/Qwen3-8B", 8, **ends, num_layers_at_start_in_bf16=-1)
    full: dict[str, Any] = {"recompute_granularity": "full", "recompute_method": "uniform"}
    assert "uniform-recomputation-of-mtp" not in broken_codes("deepseek-ai/DeepSeek-V3", 8, **full)
    assert "uniform-recomputation-of-mtp" in broken_codes("deepseek-ai/DeepSeek-V3", 8, **full, recompute_num_layers=2)


def test_what_the_activation_operator_has() -> None:
    """TransformerEngine's operator of Megatron-Core (`extensions/transformer_engine.py`, TEActivationOp)."""
    for func, gated, known in (
        ("silu", True, True),
        ("gelu", True, True),
        ("gelu", False, True),
        ("silu", False, False),
    ):
        job = TrainingJob.from_hf("Qwen/Qwen3-8B", 8)
        model = dataclasses.replace(job.model, activation_func=func, gated_linear_unit=gated)
        training = dataclasses.replace(job.training, use_te_activation_func=True, bias_activation_fusion=False)
        codes = {one.code for one in violations(model, job.layout, training, 8)}
        assert ("te-activation-unknown" in codes) != known


def test_every_module_of_bridge_needs_te() -> None:
    """The last of the settings too."""
    job = TrainingJob.from_hf("Qwen/Qwen3-8B", 8)
    others: list[dict[str, Any]] = [
        {"value_channels": 64},
        {"qk_layernorm_scope": "all"},
        {"norm_placement": "sandwich"},
    ]
    for changes in others:
        model = dataclasses.replace(job.model, **changes)
        training = dataclasses.replace(job.training, transformer_impl="local")
        assert "bridge-module-needs-te" in {one.code for one in violations(model, job.layout, training, 8)}, changes


def test_hyper_connections_of_layers_that_are_not_modelled() -> None:
    for model, known in (("Qwen/Qwen3-8B", True), ("Qwen/Qwen3-30B-A3B", False)):
        job = TrainingJob.from_hf(model, 8)
        several = dataclasses.replace(job.model, enable_mhc_connections=True)
        codes = {one.code for one in violations(several, job.layout, job.training, 8)}
        assert ("mhc-of-other-layers" in codes) != known


def test_a_recipe_that_a_gpu_lacks_has_others_named() -> None:
    with pytest.raises(LayoutError, match=r"use .*tensorwise.* or "):
        estimate(TrainingJob.from_hf("Qwen/Qwen3-8B", 8, gpu="H100", fp8="e4m3", fp8_recipe="mxfp8"))
    with pytest.raises(LayoutError, match="leave fp8 out"):
        estimate(TrainingJob.from_hf("Qwen/Qwen3-8B", 8, gpu="A100", fp8="e4m3", fp8_recipe="mxfp8"))
    with pytest.raises(LayoutError, match="leave fp4 out"):
        estimate(TrainingJob.from_hf("Qwen/Qwen3-8B", 8, gpu="H100", fp4="e2m1"))


def test_two_stages_of_chunks_are_suggested_where_sends_overlap() -> None:
    """Megatron-LM `megatron/training/arguments.py`: with two stages, chunks need overlap_p2p_comm."""
    for overlap, fix in ((True, "use 2, 4 or 8 stages"), (False, "use 4 or 8 stages")):
        job = TrainingJob.from_config(
            {"num_layers": 16, "hidden_size": 1024, "num_attention_heads": 16, "vocab_size": 1024, "seq_length": 1024},
            6,
            pp=3,
            overlap_p2p_comm=overlap,
        )
        layout = dataclasses.replace(job.layout, virtual_pipeline_model_parallel_size=2)
        found = [one.text for one in violations(job.model, layout, job.training, 8)]
        assert any(text.startswith("num_layers=16 is not divisible") and fix in text for text in found), found


def test_borders_of_a_hybrid_say_the_layers_of_each_stage() -> None:
    config = {"num_layers": 5, "hybrid_layer_pattern": "M|M*M-", "hidden_size": 1024, "num_attention_heads": 8}
    job = TrainingJob.from_config({**config, "vocab_size": 1024, "seq_length": 1024, "add_bias_linear": False}, 2, pp=2)
    assert [len(stage.rank.plans[0].chunk.layers) for stage in estimate(job).stages] == [1, 4]


def test_rules_hold_on_both_sides_of_their_borders() -> None:
    moe, sharded = "Qwen/Qwen3-30B-A3B", {"use_torch_fsdp2": True, "use_distributed_optimizer": False}
    assert "torch-fsdp2-with-pp-or-ep" in broken_codes(moe, 8, {"expert_model_parallel_size": 2}, **sharded)
    assert "torch-fsdp2-with-pp-or-ep" not in broken_codes(moe, 8, {"expert_model_parallel_size": 1}, **sharded)
    moved: dict[str, Any] = {"optimizer_cpu_offload": True}
    for fraction, refused in ((-0.5, True), (0.0, False), (1.0, False), (1.5, True)):
        assert ("offload-fraction" in broken_codes(moe, 8, **moved, optimizer_offload_fraction=fraction)) == refused
    dealt: dict[str, Any] = {"optimizer": "muon", "use_distributed_optimizer": True}
    for rank, refused in ((7, False), (8, True), (9, True)):
        assert (
            "data-parallel-rank-above-size"
            in broken_codes("Qwen/Qwen3-0.6B", 8, {TP: 1}, **dealt, data_parallel_rank=rank)
        ) == refused
    nemotron = "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"  # 64 heads of state, 8 groups
    tall = {TP: 4, CP: 4, "expert_model_parallel_size": 1, "sequence_parallel": True}
    assert "mamba-heads-over-tp-cp" not in broken_codes(nemotron, 8, tall)
    assert "mamba-heads-over-tp-cp" in broken_codes(nemotron, 1024, {**tall, TP: 8, CP: 16})
    second: dict[str, Any] = {"use_megatron_fsdp": True, "megatron_fsdp_version": 2, "megatron_core_version": "0.20"}
    for dtype in ("fp16", "bf16"):
        said = [one.rule for one in violations(*second_version(params_dtype=dtype, **second), 8)]
        assert ("fp16" in str(said)) == (dtype == "fp16")


def second_version(**training: Any) -> tuple[Any, Any, Any]:
    """A dense run with the second version of Megatron-FSDP."""
    job = TrainingJob.from_hf("Qwen/Qwen3-0.6B", 8, tp=1)
    settings = dataclasses.replace(
        job.training, use_distributed_optimizer=False, gradient_accumulation_fusion=False, **training
    )
    return job.model, job.layout, settings
