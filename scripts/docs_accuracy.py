"""Tables of docs/explanation/accuracy.md: every measured run beside its estimate."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from docs_markdown import ROOT, markdown

if TYPE_CHECKING:
    from megatron_memory_estimator.validation.replay import Replay


@functools.cache
def replays() -> list[Replay]:
    """Every run of the table, replayed."""
    from megatron_memory_estimator.validation.replay import replay
    from megatron_memory_estimator.validation.runs import read_runs

    return [replay(run) for run in read_runs()]


def accuracy_sums() -> str:
    """Median, 90th percentile and worst group, by kind, family and feature."""
    from megatron_memory_estimator.report.validation import summary_rows

    return markdown(("groups", "steady", "peak", "first step", "beyond state"), summary_rows(replays()))


def accuracy_groups() -> str:
    """One row per group, worst peak first."""
    from megatron_memory_estimator.report.validation import score_row
    from megatron_memory_estimator.validation.replay import scores

    header = ("group", "family", "runs", "steady", "peak", "first step", "beyond state", "peak, signed mean")
    return markdown(header, [score_row(score) for score in scores(replays())])


def accuracy_cases() -> str:
    """One row per run that is not refused, with the published formulas."""
    from megatron_memory_estimator.report.validation import case_row, percent

    rows = []
    for replay in replays():
        if not replay.refused:
            name, *cells = case_row(replay)
            formulas = {formula: percent(pair.error) for formula, pair in replay.formulas}
            gpu = f"{replay.run.num_gpus} x {replay.run.gpu}"
            rows.append((f"`{name}`", gpu, *cells, formulas.get("bridge", "-"), formulas.get("megatron_lm", "-")))
    header = (
        "run",
        "GPUs",
        "steady GiB",
        "error",
        "peak GiB",
        "error",
        "first step",
        "beyond state",
        "Bridge",
        "Megatron-LM",
    )
    return markdown(header, rows)


LARGE = 16 * 2**30
"""Bytes of a peak above which a run is no small test model."""
OF_ERRORS = ("peaks of", "runs", "median error", "worst", "off by more than 1 %")


def _kinds() -> dict[str, list[Replay]]:
    """Runs with a measured peak: all, dense, MoE, and those of large peaks."""
    found = [one for one in replays() if one.peak]
    return {
        "all": found,
        "dense": [one for one in found if not one.moe],
        "MoE": [one for one in found if one.moe],
        "runs above 16 GiB": [one for one in found if one.peak and one.peak.measured > LARGE],
    }


def _errors(name: str, runs: Sequence[Replay]) -> tuple[str, ...]:
    """A row: the errors of these runs, and how many are off by more than 1 % and whither."""
    errors = [one.peak.error for one in runs if one.peak]
    low, high = sum(error < -0.01 for error in errors), sum(error > 0.01 for error in errors)
    sizes = sorted(map(abs, errors))
    return (name, str(len(errors)), f"{sizes[len(sizes) // 2]:.2%}", f"{sizes[-1]:.2%}", f"{low} low, {high} high")


def accuracy_short() -> str:
    """Peaks of dense, MoE and large runs."""
    return markdown(OF_ERRORS, [_errors(*one) for one in _kinds().items()])


def accuracy_families() -> str:
    """The same, and each family, the worst first."""
    found = _kinds()["all"]
    members = {name: [one for one in found if one.run.family == name] for name in {one.run.family for one in found}}
    worst = sorted(members, key=lambda name: (-max(abs(one.peak.error) for one in members[name] if one.peak), name))
    families = [(f"family {name}", members[name]) for name in worst]
    return markdown(OF_ERRORS, [_errors(*one) for one in (*_kinds().items(), *families)])


def accuracy_low() -> str:
    """Runs whose peak is under-estimated notably, worst first."""
    from megatron_memory_estimator.report.validation import NOTABLE, percent
    from megatron_memory_estimator.validation.replay import under_estimated

    rows = [(f"`{one.run.id}`", percent(one.peak.error)) for one in under_estimated(replays(), NOTABLE) if one.peak]
    return markdown(("run", "peak"), rows)


def accuracy_differences() -> str:
    """Pairs of runs that differ in one thing."""
    from megatron_memory_estimator.job.hardware import GIB
    from megatron_memory_estimator.validation.replay import differences

    rows = [
        (
            d.what,
            d.figure.replace("_", " "),
            f"{d.measured / GIB:+.3f}",
            f"{d.estimated / GIB:+.3f}",
            "yes" if d.agrees else "no",
            d.source,
        )
        for d in differences()
    ]
    return markdown(("change", "figure", "measured GiB", "estimated GiB", "agrees", "source"), rows)


def accuracy_bounds() -> str:
    """The closing lines of `validate`."""
    from megatron_memory_estimator.report.validation import closing_lines

    return "\n".join(f"- {line}" for line in closing_lines(replays()))


def accuracy_repeats() -> str:
    """Configurations of MoE models that were run more than once, and how far equal runs are apart beside those of dense models."""
    from megatron_memory_estimator.report.validation import percent
    from megatron_memory_estimator.validation.replay import repeats, summary

    every = repeats(replays())
    lines = []
    for kind, moe in (("dense", False), ("MoE", True)):
        found = [one for one in every if one.moe == moe]
        of_all = summary(one.spread for one in found)
        if of_all is not None:
            lines.append(
                f"- {len(found)} configurations of {kind} models: their runs are {100 * of_all.median:.2f} points apart in the median, "
                f"90 % within {100 * of_all.p90:.2f}, the farthest {100 * of_all.worst:.2f}"
            )
    rows = [
        (f"`{one.name}`", str(one.runs), percent(one.low), percent(one.high), f"{100 * one.spread:.2f}")
        for one in every
        if one.moe
    ]
    header = ("MoE configuration", "runs", "lowest error", "highest error", "points apart")
    return "\n".join(lines) + "\n\n" + markdown(header, rows)


def accuracy_routing() -> str:
    """Errors of MoE peaks by how rows come to the experts."""
    from megatron_memory_estimator.report.validation import percent

    kinds: dict[str, list[float]] = {}
    for one in replays():
        if one.moe and one.peak:
            kinds.setdefault(_rows_of(one.run.features, one.forced), []).append(one.peak.error)
    rows = [
        (kind, str(len(errors)), percent(min(errors)), percent(sorted(errors)[len(errors) // 2]), percent(max(errors)))
        for kind, errors in sorted(kinds.items())
    ]
    return markdown(("rows of an expert", "runs", "lowest error", "median", "highest error"), rows)


def _rows_of(features: Sequence[str], forced: bool) -> str:
    if "moe-capacity" in features:
        return "padded to a capacity"
    if forced:
        return "as forced balance gives them"
    ways = [feature.removeprefix("dispatcher-") for feature in features if feature.startswith("dispatcher-")]
    return f"as the data has it, {ways[0]}" if ways else "as the data has it"


def accuracy_refused() -> str:
    """Runs that are refused, by reason."""
    reasons: dict[str, list[str]] = {}
    for found in replays():
        if found.refused:
            reasons.setdefault(found.refused, []).append(found.run.id)
    rows = [(why, str(len(ids)), f"`{ids[0]}`") for why, ids in sorted(reasons.items(), key=lambda item: -len(item[1]))]
    return markdown(("why", "runs", "such as"), rows)


def record() -> str:
    """A measured run as `validate --against` reads it."""
    import json

    file = ROOT / "src" / "megatron_memory_estimator" / "validation" / "runs.jsonl"
    found = next(
        line
        for line in map(json.loads, file.read_text().splitlines())
        if line["id"].endswith("llama3_70b_tp2_pp1_dp4_l12_mbc4_cef")
    )
    found["id"] = "llama-3-70b-12-layers"
    kept = ("id", "gpu", "num_gpus", "rank", "args", "settings", "measured")
    text = json.dumps({key: found[key] for key in kept})
    return f"```json\n{text}\n```\n"


TABLES = {
    "record": record,
    "accuracy sums": accuracy_sums,
    "accuracy groups": accuracy_groups,
    "accuracy cases": accuracy_cases,
    "accuracy refused": accuracy_refused,
    "accuracy repeats": accuracy_repeats,
    "accuracy routing": accuracy_routing,
    "accuracy low": accuracy_low,
    "accuracy families": accuracy_families,
    "accuracy short": accuracy_short,
    "accuracy differences": accuracy_differences,
    "accuracy bounds": accuracy_bounds,
}
