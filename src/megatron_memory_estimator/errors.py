"""The errors that users meet; each message is one sentence with the rule, the numbers and the fix.

EstimatorError              anything this package refuses; the command line prints it and exits with 2
  ConfigError               an input that cannot be read or understood (missing file, wrong type, unknown name)
    QuestionsError          a run's file that leaves something open; `questions` holds each with the option that answers it
  LayoutError               a layout that Megatron-Core would refuse; `reasons` lists every violated rule
  UnsupportedError          a legal run with a feature that is not modelled; it is refused by name
  StoppedError              work that its caller ended before it was done
  NumPyError                work that is only done where NumPy is installed
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .wording import LONGEST_MESSAGE, LONGEST_QUESTIONS, plain


class EstimatorError(ValueError):
    """Anything this package refuses; its message is one line of at most 500 characters without control characters."""

    longest = LONGEST_MESSAGE

    def __init__(self, message: str = "") -> None:
        super().__init__(plain(message, self.longest))


class ConfigError(EstimatorError):
    """An input that cannot be read or understood."""


@dataclass(frozen=True)
class Question:
    """One thing that a run's file leaves open, and the option of the command line that answers it, if one does.

    `subject` is the argument, key or count that waits for the answer, `values` the answers that the file names, `cause` the variable that
    answers too where the option does not give it.
    """

    what: str
    option: str = ""
    subject: str = ""
    values: tuple[str, ...] = ()
    cause: str = ""


class QuestionsError(ConfigError):
    """A run's file that leaves something open, or holds several things that are refused.

    The message, of at most 2,000 characters, names all of it and the options that answer; `questions` holds each.
    """

    longest = LONGEST_QUESTIONS

    def __init__(self, message: str = "", questions: Sequence[Question] = ()) -> None:
        super().__init__(message)
        self.questions = tuple(questions)


class UnsupportedError(EstimatorError):
    """A run with a feature that the engine does not model. `rule` says the same without the numbers of the run and the fix."""

    def __init__(self, message: str = "", rule: str = "") -> None:
        super().__init__(message)
        self.rule = rule or str(self)


class StoppedError(EstimatorError):
    """Work that its caller ended before it was done."""


class NumPyError(EstimatorError):
    """Work that is only done where NumPy is installed: `reason` says what, the message what to install too."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(f"{reason}; NumPy: pip install 'megatron-memory-estimator[plan]'")
        self.reason = reason


class LayoutError(EstimatorError):
    """A layout that Megatron-Core would refuse.

    `reasons` holds one sentence for each violated rule; the message joins them, each with the code of its rule. `rules` says the same
    without the numbers of the layout, so that refusals can be counted; `codes` are those of the reference of rules.
    """

    def __init__(self, reasons: tuple[str, ...], rules: tuple[str, ...] = (), codes: tuple[str, ...] = ()) -> None:
        self.reasons = reasons
        self.rules = rules or reasons
        self.codes = codes or ("",) * len(reasons)
        super().__init__(_joined([*map(coded, reasons, self.codes)]))


def coded(reason: str, code: str) -> str:
    """A reason, and the code by which the reference of rules is searched."""
    return f"{reason} [{code}]" if code else reason


def _joined(reasons: Sequence[str]) -> str:
    """As many reasons as a message holds, and how many more there are."""
    shown = list(reasons)
    while len(text := "; ".join(shown)) > LONGEST_MESSAGE - 20 and len(shown) > 1:
        shown.pop()
    left = len(reasons) - len(shown)
    return f"{text}; and {left} more" if left else text
