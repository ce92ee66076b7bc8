"""The tables of docs/explanation/peers.md: what `make bench-peers` recorded."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from docs_markdown import ROOT, lines_of, markdown

CASES: dict[str, Any] = json.loads((ROOT / "scripts" / "peers" / "cases.json").read_text())


def cases() -> str:
    """The runs that were asked about."""
    rows = []
    for name, case in CASES.items():
        measured = next(one["measured_gib"] for one in lines_of("peers.jsonl") if one["case"] == name)
        source = f"{measured:.2f} GiB: `{case['run']}` in [accuracy](accuracy.md)" if measured else "not public"
        rows.append((name, case["what"], source))
    return markdown(("case", "run, in bf16 with the distributed optimizer", "measured"), rows)


def answers(kind: str) -> str:
    """GiB of one GPU by peer, for the measured cases or the others, with the error where it is known."""
    found = lines_of("peers.jsonl")
    names = [name for name, case in CASES.items() if ("run" in case) == (kind == "measured")]
    rows = []
    for peer in dict.fromkeys(one["peer"] for one in found):
        own = {one["case"]: one for one in found if one["peer"] == peer}
        cells = [_cell(own[name]) for name in names]
        if any(own[name]["gib"] is not None for name in names) or kind == "other":
            said = next((one["of"] for one in own.values() if one["of"]), "") or own[names[0]]["why"].split("\n")[0]
            rows.append((f"{peer} {own[names[0]]['version']}".replace(" this one", ""), *cells, said))
    return markdown(("estimator", *names, "what the figure is"), rows)


def _cell(one: dict[str, Any]) -> str:
    if one["gib"] is None:
        return "no answer"
    error = f" ({one['gib'] / one['measured_gib'] - 1:+.1%})" if one["measured_gib"] else ""
    return f"{one['gib']:,.1f}{error}"


def costs() -> str:
    """Seconds, memory and installed size by peer, of Llama-3-70B."""
    rows = []
    for one in lines_of("peers.jsonl"):
        if one["case"] == "llama-3-70b":
            size = f"{one['installed_mb']:,.0f}" + (f", {one['note']}" if one["note"] else "")
            rows.append(
                (one["peer"], f"{one['seconds']:.2f}", f"{one['times_ours']:.1f}", f"{one['resident_mib']:,.0f}", size)
            )
    return markdown(("estimator", "seconds", "times ours", "memory, MiB", "installed, MB"), rows)


TABLES = {
    "peers cases": cases, "peers measured": partial(answers, "measured"), "peers other": partial(answers, "other"), "peers costs": costs,
}  # fmt: skip
