"""Tables of docs/explanation/device_memory.md: the allocator's rules beside measured ranks, by family."""

from __future__ import annotations

import statistics

from docs_markdown import lines_of, markdown, records_of


def replayed_ranks() -> str:
    """Measured ranks beside the allocator's rules played over their runs."""
    from megatron_memory_estimator import TrainingJob, estimate
    from megatron_memory_estimator.device.replay import replay
    from megatron_memory_estimator.job.hardware import GIB

    rows = []
    for case in records_of("measured_b200.json"):
        version = {"transformer_engine_version": "2.11", "megatron_core_version": "0.14"}
        job = TrainingJob.from_megatron_args(case["args"], case["num_gpus"], gpu="B200", **version)
        stages = estimate(job).stages
        width = case["num_gpus"] // len(stages)
        slack, away = [], []
        for rank, (allocated, reserved) in enumerate(
            zip(case["max_allocated_bytes"], case["max_reserved_bytes"], strict=True)
        ):
            played = replay(job, stages[rank // width].rank, rank % width, expandable=False)
            slack.append((reserved - allocated) / GIB)
            away.append((played.reserved[-1] - reserved) / GIB)
        top = max(case["max_allocated_bytes"]) / GIB
        rows.append(
            (f"`{case['case']}`", f"{top:.1f}", f"{min(slack):.2f} - {max(slack):.2f}", f"{statistics.median(away):+.2f}",
             f"{min(away):+.2f} to {max(away):+.2f}")
        )  # fmt: skip
    header = (
        "run",
        "allocated GiB",
        "reserved beyond it, over 8 ranks",
        "rules less measured, median",
        "of every rank",
    )
    return markdown(header, rows)


def played_shares() -> str:
    """What the rules leave unused, by family, and what the others would say of it."""
    records = lines_of("played_shares.jsonl")
    kinds = {
        "repeating": ("native", "resumed"),
        "varying": ("native_varying",),
        "expandable": ("expandable", "expandable_varying"),
    }
    rows = []
    for family in sorted({one["family"] for one in records}):
        mine = [one for one in records if one["family"] == family]
        others = [one for one in records if one["family"] != family]
        cells = []
        for names in kinds.values():
            both = []
            for some in (mine, others):
                found = [(one[name][1], one[name][1] / one["freed"]) for one in some for name in names if name in one]
                both.append(", ".join(f"{max(column):.1%}" for column in zip(*found, strict=True)))
            cells.append(f"{both[0]} ({both[1]})" if both[0] else "")
        rows.append((family, str(len(mine)), *cells))
    header = ("family", "stages", "sizes that repeat", "sizes that vary", "expandable segments")
    return markdown(header, rows)


def reserved_pairs() -> str:
    """Public runs with expandable segments, and the most of all other families."""
    records = records_of("reserved_pairs.json")
    shares = [(one, one["reserved"] / one["allocated"] - 1) for one in records]
    rows = []
    for one, share in shares:
        rest = max(other for record, other in shares if record["family"] not in (one["family"], "padded"))
        rows.append((one["run"], f"{share:.1%}", f"{rest:.1%}"))
    return markdown(("run", "reserved beyond allocated", "most of the other families"), rows)


TABLES = {
    "replayed ranks": replayed_ranks,
    "played shares": played_shares,
    "reserved pairs": reserved_pairs,
}
