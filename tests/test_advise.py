"""`megatron-memory advise`: every change is a run of its own that `estimate` agrees with."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
import shlex
from itertools import combinations
from typing import Any

import pytest

from megatron_memory_estimator import TrainingJob, estimate
from megatron_memory_estimator.job.layout import Layout
from megatron_memory_estimator.job.training import Training
from megatron_memory_estimator.planner.advise import Outcome, advise, compatible, cost_of, outcomes
from megatron_memory_estimator.planner.changes import Change, changed, larger_changes, memory_changes
from megatron_memory_estimator.report.advice import advice_document
from megatron_memory_estimator.report.verdict import ALLOCATOR

from .helpers import ROOT
from .test_plan import printed


def test_advice_names_the_options_of_every_change(capsys: pytest.CaptureFixture[str]) -> None:
    """Typed behind the run's own options they are the advised run."""
    words = [
        "Qwen/Qwen3-30B-A3B",
        "--num-gpus",
        "16",
        "--pp",
        "2",
        "--ep",
        "8",
        "--global-batch-size",
        "512",
        "--gpu",
        "H100",
    ]
    rows = list(
        csv.DictReader(io.StringIO(printed(capsys, "advise", *words, "--seq-length", "16384", "--format", "csv")))
    )
    assert len(rows) > 1 and rows[0]["change"] == rows[0]["options"] == ""
    for row in rows:
        options = shlex.split(row["options"].replace(ALLOCATOR, "--expandable-segments"))
        if "without" not in options:
            document = json.loads(printed(capsys, "estimate", *words, "--seq-length", "16384", *options, "--json"))
            assert max(one["peak_allocated_bytes"] for one in document["stages"]) == int(row["peak_allocated_bytes"])


def test_the_mask_of_the_data_loader_goes_away_with_the_option_that_turns_it_off(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """131,072 positions in bytes, squared: 16 GiB whole beside the 2 GiB of each of eight ranks."""
    words = ["Qwen/Qwen3-0.6B", "--num-gpus", "8", "--cp", "8", "--seq-length", "131072", "--gpu", "RTX-4090"]
    text = printed(capsys, "advise", *words, "--create-attention-mask-in-dataloader", "--format", "csv")
    off = "--no-create-attention-mask-in-dataloader"
    row = next(row for row in csv.DictReader(io.StringIO(text)) if off in row["options"])
    assert "no attention mask from the data loader" in row["change"]
    document = json.loads(printed(capsys, "estimate", *words, *shlex.split(row["options"]), "--json"))
    assert max(one["peak_allocated_bytes"] for one in document["stages"]) == int(row["peak_allocated_bytes"])


UNFRAGMENTED = [
    "deepseek-ai/DeepSeek-V3", "--num-gpus", "512", "--tp", "2", "--pp", "8", "--ep", "64", "--gpu", "H100",
    "--pipeline-model-parallel-layout", "Ettttttttt|(tttttttt|)*6ttttmL",
    "--recompute-granularity", "selective", "--recompute-modules", "mla_up_proj,mlp",
]  # fmt: skip


def test_the_allocator_comes_first_where_fragmentation_alone_decides(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(printed(capsys, "advise", *UNFRAGMENTED, "--json"))
    assert document["now"]["verdict"] == "fits only without fragmentation"
    first = document["advice"][0]
    assert [change["settings"] for change in first["changes"]] == [{"expandable_segments": True}]
    assert first["verdict"] == "fits" and first["cost"] == 0
    assert "1: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in printed(capsys, "advise", *UNFRAGMENTED)


@pytest.mark.parametrize("width", [60, 80, 100])
def test_advice_in_a_narrow_terminal(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    table = printed(capsys, "advise", *UNFRAGMENTED).split("needs GiB: what")[0]
    assert max(map(len, table.splitlines())) <= width and "\u2026" not in table
    for row in csv.DictReader(io.StringIO(printed(capsys, "advise", *UNFRAGMENTED, "--format", "csv"))):
        low, high = (int(row[f"device_{end}_bytes"]) / 2**30 for end in ("low", "high"))
        assert f"{low:.1f} to {high:.1f}" in table and f"{float(row['step_s']):.3f}" in table


def test_where_loading_decides_advice_says_what_lowers_it(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["meta-llama/Llama-3.1-70B", "--num-gpus", "16", "--tp", "8", "--pp", "2", "--gpu", "H100"]
    text = " ".join(printed(capsys, "advise", *words, "--recompute-granularity", "full").split())
    assert "Cannot resume with optimizer state, at least " in text and "with --no-load-optim " in text
    assert "Loading takes less with: --no-load-optim" in text


def test_where_nothing_helps_the_fewest_gpus_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "plan MODEL --min-num-gpus" in printed(
        capsys, "advise", "meta-llama/Llama-3.1-405B", "--num-gpus", "16", "--tp", "1", "--gpu", "H100"
    )


ADVICE: list[tuple[str, int, dict[str, Any]]] = [
    ("Qwen/Qwen3-8B", 8, {"tensor_model_parallel_size": 2, "seq_length": 32768, "global_batch_size": 64}),
    ("Qwen/Qwen3-30B-A3B", 8, {"expert_model_parallel_size": 8, "micro_batch_size": 8, "global_batch_size": 512}),
    ("meta-llama/Meta-Llama-3-70B", 32, {"tensor_model_parallel_size": 8, "global_batch_size": 128}),
]


@pytest.mark.parametrize(("name", "gpus", "settings"), ADVICE)
def test_advice_is_what_estimate_says_of_the_changed_run(name: str, gpus: int, settings: dict[str, Any]) -> None:
    job = TrainingJob.from_hf(name, gpus, gpu="H100", **settings)
    found = advise(job)
    assert not found.faster and found.outcomes
    assert found.now.needed.high > found.limit
    for one in found.outcomes:
        values = {key: value for change in one.changes for key, value in change.settings}
        again = estimate(changed(job, values))
        assert again.peak_stage.peak_allocated_bytes == one.peak
        assert one.needed == again.needed
    for one in found.outcomes:  # none costs more than another that takes as little and asks for nothing else
        others = [other for other in found.outcomes if other is not one and other.asks <= one.asks]
        assert not any(other.needed.high <= one.needed.high and cost_of(other) <= cost_of(one) for other in others)
        assert one.needed.high < found.now.needed.high
    if any(one.needed.high <= found.limit for one in found.outcomes):
        assert all(one.verdict(found.limit).fits for one in found.outcomes)


def test_larger_moves_and_more_of_them_are_tried_where_pairs_do_not_suffice() -> None:
    """gpt-oss-20b on 8 H100 without any sharding: no change of one size, and no pair, makes it fit; expert parallelism over more ranks
    does, with others."""
    job = TrainingJob.from_hf("openai/gpt-oss-20b", 8, gpu="H100", seq_length=8192, tensor_model_parallel_size=1)
    found = advise(job)
    assert not any(one.needed.high <= found.limit for one in outcomes(found.now, _pairs(found.now)))
    first = next(one for one in found.outcomes if not one.asks)
    assert first.verdict(found.limit).fits
    assert first.job.layout.world_size == 8 and first.job.layout.ep > 2
    assert cost_of(first) < 1.2 * cost_of(found.now)


def _pairs(now: Outcome) -> list[tuple[Change, ...]]:
    """All single changes of `memory_changes` and all their pairs."""
    singles = list(memory_changes(now.job))
    return [(one,) for one in singles] + [pair for pair in combinations(singles, 2) if compatible(pair)]


def test_the_order_of_tries_finds_what_an_exhaustive_search_of_pairs_finds() -> None:
    """Qwen3-30B-A3B with too large micro batches: the cheapest pair or single change that asks for nothing is among the answers."""
    job = TrainingJob.from_hf("Qwen/Qwen3-30B-A3B", 16, gpu="H100", expert_model_parallel_size=8, micro_batch_size=8)
    found = advise(job)
    changes = [*memory_changes(found.now.job), *larger_changes(found.now.job)]
    groups = [(one,) for one in changes] + [pair for pair in combinations(changes, 2) if compatible(pair)]
    fits = [one for one in outcomes(found.now, groups) if one.needed.high <= found.limit and not one.asks]
    assert len(fits) > 3
    best = min(map(cost_of, fits))
    assert min(cost_of(one) for one in found.outcomes if not one.asks) <= 1.01 * best


def test_where_nothing_fits_what_saves_most_is_first_and_no_answer_takes_more_gpus_than_it_must() -> None:
    few = advise(TrainingJob.from_hf("meta-llama/Llama-3.1-405B", 16, gpu="H100", tensor_model_parallel_size=1))
    highs = [one.needed.high for one in few.outcomes]
    assert highs and min(highs) > few.limit and highs == sorted(highs)
    some = advise(TrainingJob.from_hf("openai/gpt-oss-20b", 8, gpu="H100", expert_model_parallel_size=4))
    assert {one.job.layout.world_size for one in some.outcomes} <= {8, 16}


def test_advice_for_a_run_with_room_makes_it_faster(capsys: pytest.CaptureFixture[str]) -> None:
    job = TrainingJob.from_hf("Qwen/Qwen3-8B", 8, gpu="H200", tensor_model_parallel_size=4, global_batch_size=64)
    found = advise(job)
    assert found.faster and found.outcomes
    assert all(one.time.step < found.now.time.step and one.needed.high <= found.limit for one in found.outcomes)
    words = ("advise", "Qwen/Qwen3-8B", "--num-gpus", "8", "--gpu", "H200", "--tp", "4", "--global-batch-size", "64")
    assert "make it faster" in printed(capsys, *words)
    document = json.loads(printed(capsys, *words, "--json"))
    assert document["purpose"] == "faster" and document["advice"][0]["step_s"] == pytest.approx(
        found.outcomes[0].time.step
    )


def advised_in_the_docs() -> list[str]:
    return re.findall(
        r"<!-- run: megatron-memory (advise .+?) -->", (ROOT / "docs" / "how-to" / "advise.md").read_text()
    )


@pytest.mark.parametrize("command", advised_in_the_docs())
def test_advice_in_the_docs_holds(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each advised run again through `estimate` of its own: the settings of the command with those of the advice on top."""
    words = shlex.split(command)
    document = json.loads(printed(capsys, *words, "--json"))
    assert document["purpose"] == ("faster" if "Qwen3-8B" in command else "fit") and document["advice"]
    if document["purpose"] == "fit":
        assert document["now"]["verdict"] != "fits"
    base = json.loads(printed(capsys, "estimate", *words[1 : words.index("--top")], "--json"))
    for one in document["advice"][:3]:
        settings = {key: value for change in one["changes"] for key, value in change["settings"].items()}
        env = {key: settings.pop(key) for key in list(settings) if key == "expandable_segments"}
        layout = {**base["layout"], **base["training"], **settings}
        known = {f.name for part in (Layout, Training) for f in dataclasses.fields(part)} - {"world_size"}
        given = {key: value for key, value in layout.items() if key in known and value is not None}
        if given.get("tensor_model_parallel_size") == 1:
            given["sequence_parallel"] = False
        if given.get("pipeline_model_parallel_layout") or given.get("virtual_pipeline_model_parallel_size") == 1:
            given.pop("virtual_pipeline_model_parallel_size", None)
        job = TrainingJob.from_hf(
            words[1],
            settings.get("world_size", base["layout"]["world_size"]),
            gpu=words[words.index("--gpu") + 1],
            env=env,
            **given,
        )
        again = estimate(job)
        assert again.peak_stage.peak_allocated_bytes == one["peak_allocated_bytes"]
        assert again.verdict().device.high == one["device_bytes"]["high"]


def test_no_change_under_what_saves_memory_costs_memory() -> None:
    """DeepSeek-V3 in 16 stages: "1 layers on the last stage" came first, with 3.5 GiB more than the run as it is."""
    job = TrainingJob.from_hf(
        "deepseek-ai/DeepSeek-V3", 1024, pp=16, ep=64, cp=2, global_batch_size=2048, recompute_granularity="selective",
        recompute_modules=("mla_up_proj", "moe_act", "mlp"), gpu="H100",
    )  # fmt: skip
    found = advise(job)
    assert not found.faster and found.outcomes
    assert all(one.needed.high < found.now.needed.high and one.peak <= found.now.peak for one in found.outcomes)


def test_the_loss_is_advised_where_a_front_end_takes_it() -> None:
    """TransformerEngine's fused loss is refused by Megatron-LM's own arguments since 0.19, and taken before and by Megatron-Bridge."""
    words = ["--num-layers", "4", "--hidden-size", "1024", "--num-attention-heads", "8", "--seq-length", "4096", "--bf16",
             "--max-position-embeddings", "4096",
             "--micro-batch-size", "1", "--global-batch-size", "8", "--vocab-size", "128256"]  # fmt: skip
    named = TrainingJob.from_hf("Qwen/Qwen3-8B", 8, tp=2, gpu="A100")
    for job, asks in (
        (named, ["Megatron-Bridge"]),
        (
            dataclasses.replace(named, training=dataclasses.replace(named.training, megatron_core_version="0.18")),
            [None],
        ),
        (TrainingJob.from_megatron_args(words, 8, megatron_core_version="0.19"), []),
        (TrainingJob.from_megatron_args(words, 8, megatron_core_version="0.18"), [None]),
    ):
        losses = [one for one in memory_changes(job) if ("cross_entropy_fusion_impl", "te") in one.settings]
        assert [one.asks for one in losses] == asks
    tight = TrainingJob.from_hf("Qwen/Qwen3-0.6B", 8, tp=1, micro_batch_size=6, gpu="RTX-A6000")
    found = advise(tight)
    assert found.now.estimate.peak_stage.peak.candidate.label.startswith("forward of output.loss_func")
    assert any("TransformerEngine" in change.name for one in found.outcomes for change in one.changes)


def test_what_costs_more_than_twice_another_is_not_listed() -> None:
    found = advise(TrainingJob.from_hf("meta-llama/Llama-3.1-70B", 64, tp=4, gpu="H100"))
    costs = {one.asks: cost_of(one) for one in reversed(found.outcomes)}
    assert all(cost_of(one) <= 2 * costs[one.asks] for one in found.outcomes)


def test_a_run_without_a_layout_is_sent_to_the_planner(capsys: pytest.CaptureFixture[str]) -> None:
    """With changes where some of data parallelism alone make it fit, and with none where none does."""
    words = " ".join(
        printed(capsys, "advise", "meta-llama/Llama-3.1-405B", "--num-gpus", "16", "--gpu", "H100").split()
    )
    assert "No layout was given, so this is data parallelism alone; `plan` searches layouts." in words
    assert (
        "Next: megatron-memory plan meta-llama/Llama-3.1-405B --num-gpus 16 --gpu H100" in words and " 1: " not in words
    )
    some = advise(TrainingJob.from_hf("Qwen/Qwen3-8B"))
    assert some.without_layout and some.outcomes and all(one.verdict(some.limit).fits for one in some.outcomes)
    assert advice_document(some)["without_layout"]
    assert not advice_document(advise(TrainingJob.from_hf("Qwen/Qwen3-8B", 1, tp=1)))["without_layout"]
