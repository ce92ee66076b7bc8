"""What a run's file leaves open, asked all at once, with the options that answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..errors import Question, QuestionsError
from ..wording import LONGEST_QUESTIONS, plain

__all__ = ["Question", "settle"]


def settle(questions: Iterable[Question], refused: Sequence[str] = ()) -> None:
    """Nothing, where nothing is open. Raises QuestionsError with all that is refused, or else with everything that is asked."""
    if refused:
        raise QuestionsError(_as_many(list(dict.fromkeys(refused)), LONGEST_QUESTIONS - 40))
    asked = list(dict.fromkeys(questions))
    if not asked:
        return
    given = dict.fromkeys(one.option for one in asked if one.option)
    options = " ".join(sorted(given, key=lambda option: option.startswith("-- ")))  # arguments behind -- come last
    if len(asked) == 1:
        raise QuestionsError(asked[0].what + (f"; give {options}" if options else ""), asked)
    what = _as_many([one.what for one in asked], LONGEST_QUESTIONS - len(options) - 80)
    raise QuestionsError(
        f"{len(asked)} things must be settled: {what}" + (f". Give: {options}" if options else ""), asked
    )


def _as_many(sentences: list[str], most: int) -> str:
    """As many sentences as there is room for, and how many more there are."""
    kept = list(sentences)
    while len("; ".join(kept)) > most and len(kept) > 1:
        kept.pop()
    left = len(sentences) - len(kept)
    return plain("; ".join(kept), max(most, 100)) + (f"; and {left} more" if left else "")
