"""What advice shows of itself in Python."""

from __future__ import annotations

from html import escape
from typing import Any

from ..planner.advise import Advice
from .advice import advice_records, cost, headline, name_of
from .figures import gib
from .html import WORDS, fragment, sentence, table
from .verdict import bounds_text

CHANGE = "change"


def records(advice: Advice) -> list[dict[str, Any]]:
    """The run as it is, and one record for each change."""
    return advice_records(advice)


def html(advice: Advice) -> str:
    """The verdict, and a table of changes."""
    first, second = headline(advice)
    rows = [
        [
            escape(name_of(one)), gib(one.peak), gib(advice.now.peak - one.peak), bounds_text(one.device),
            escape(str(one.verdict(advice.limit))), f"{one.time.step:.3f}", f"{cost(advice, one):+.1%}",
        ]
        for one in advice.outcomes
    ]  # fmt: skip
    header = [CHANGE, "peak GiB", "saves GiB", "device GiB", "verdict", "step s", "GPU time of a step"]
    return fragment(
        [
            sentence(first, WORDS[advice.now.verdict(advice.limit).word]),
            sentence(second),
            table(header, rows, left=(CHANGE, "verdict")) if rows else "",
            *(sentence(f"assumed: {said}") for said in advice.assumptions),
        ]
    )
