"""Several estimates side by side: a row per figure, a column per case, a mark where they differ.

Comparisons as tables of a terminal, Markdown and LaTeX.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from ..estimator import Estimate
from ..job.assumption import shorts_of
from ..job.layout import Layout
from ..modules.counts import count_parameters
from ..planner.advise import priced
from ..rank.rank import PARTS
from ..versions import assumptions
from ..wording import counted
from .document import config_section, features_text, layout_section, recompute_text, settings_of, training_section
from .neighbours import change
from .quantities import bounds_text, labelled, record, table
from .records import Record, markdown_table
from .stage_table import needed
from .verdict import short_names, verdict_sentence

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


MARK = "*"
BEST, NOTHING, REFUSED = " (lowest)", "-", "refused"
PEAK, VERDICT = "peak allocated (GiB)", "verdict"
ANSWERED = frozenset((VERDICT, "to train (GiB)", "head-room (GiB)", "fits"))
"""Figures that the sentences of the answers have."""
LAST = (
    "layers per stage",
    "fullest stage",
    "global batch",
    "expert dp",
    "pipeline (GiB)",
    "transient (GiB)",
    "workspace (GiB)",
    "GPUs",
    "tp",
    "pp",
    "vpp",
    "cp",
    "ep",
    "etp",
    "dp",
    "sequence parallel",
    "micro batch",
    "recompute",
    "features",
    "optimizer (GiB)",
    "gradients (GiB)",
    "weights (GiB)",
    "activations (GiB)",
    "to resume (GiB)",
    "MFU",
    "step (s)",
)
"""Figures that a short terminal goes without, the first first: the labels of the cases or the sentences mostly say them."""
HEAD = 2
"""Lines above the figures."""
MOST_NAMES = 4
"""GPUs that are named in a cell."""


class Case(NamedTuple):
    """A name for the column, and its estimate."""

    label: str
    estimate: Estimate


class Refused(NamedTuple):
    """A name for the column, and why there is no estimate."""

    label: str
    refusal: str


Columns = Sequence[Case | Refused]


def _of_experts(value: Callable[[Layout], int]) -> Callable[[Estimate], str]:
    """A degree of the experts in words."""
    return lambda one: str(value(one.job.layout)) if one.job.model.num_moe_experts else NOTHING


def _features(one: Estimate) -> str:
    return "; ".join(features_text(one.job.training))


def _optimizer(one: Estimate) -> str:
    t = one.job.training
    return f"{t.optimizer}{', distributed' if t.use_distributed_optimizer else ''}"


def _grad_dtype(one: Estimate) -> str:
    return next((buffer.grad_dtype for buffer in one.peak_stage.rank.buffers), one.job.training.grad_dtype)


def _libraries(one: Estimate) -> str:
    t = one.job.training
    return f"TE {t.transformer_engine_version}, Megatron-Core {t.megatron_core_version}"


def _verdict(one: Estimate) -> str:
    found = one.verdict()
    return f"{found.gpu}: {found}" + ("" if found.phase == "training" else f" ({found.phase} decides)")


def _priced(one: Estimate) -> tuple[str, ...]:
    """What was decided for the step time; nothing where there is none."""
    return () if one.job.gpu.chip_unknown else priced(one.job)[1]


def _batch(one: Estimate) -> int | None:
    """Sequences of the step that is timed."""
    return priced(one.job)[0].training.global_batch_size


def _timed(one: Estimate, name: str) -> float | None:
    """A figure of the step time, None for a GPU whose speed is not known."""
    if one.job.gpu.chip_unknown:
        return None
    found: float = getattr(one.throughput, name)
    return found


def _total(one: Estimate) -> int:
    return count_parameters(one.job.model).total


def _layers(estimate: Estimate) -> str:
    """Layers of the stages, equal neighbours together: `7 + 6 x 8 + 5`."""
    counts = [sum(len(plan.chunk.layers) for plan in stage.rank.plans) for stage in estimate.stages]
    groups = [(len(list(group)), count) for count, group in groupby(counts)]
    return " + ".join(f"{many} x {count}" if many > 1 else str(count) for many, count in groups)


def _fitting(estimate: Estimate) -> str:
    """The GPUs of the catalogue that it fits, the first few by name."""
    names = short_names()
    fits = [names[found.gpu] for found in estimate.verdicts() if found.fits]
    more = f" and {len(fits) - MOST_NAMES} more" if len(fits) > MOST_NAMES else ""
    return ", ".join(fits[:MOST_NAMES]) + more or "none of the catalogue"


COMPARED = table(
    "compared",
    {
        "num_parameters": _total,
        "global_batch_size": _batch,
        "virtual_pipeline_model_parallel_size": lambda one: len(one.stages[0].rank.plans),
        "layers_per_stage": _layers,
        "grad_dtype": _grad_dtype,
        "features": lambda one: _features(one) or None,
        "recompute": lambda one: recompute_text(one.job.training),
        "libraries": _libraries,
        "load": lambda one: one.phases.get("load"),
        **{
            name: partial(_timed, name=field)
            for name, field in (("step", "step"), ("tokens", "tokens_per_s_gpu"), ("mfu", "mfu"))
        },
        "head_room_bytes": lambda one: one.verdict().head_room,
        "verdict": lambda one: str(one.verdict()),
        "phase": lambda one: one.verdict().phase,
        "fits": _fitting,
    },
    {
        "billions": lambda one: f"{_total(one) / 1e9:.2f}",
        "ep": _of_experts(lambda layout: layout.ep),
        "etp": _of_experts(lambda layout: layout.etp),
        "expert_dp": _of_experts(lambda layout: layout.expert_dp),
        "optimizer": _optimizer,
        "features": lambda one: _features(one) or "none",
        "verdict": _verdict,
        "load": lambda one: bounds_text(one.phases["load"]) if "load" in one.phases else NOTHING,
    },
)
"""What is compared: the figures of the fullest stage."""


def records(cases: Columns) -> list[Record]:
    """One record per case with plain numbers; all but its name and the reason are None where it is refused."""
    found = [record(COMPARED, case.estimate) if isinstance(case, Case) else None for case in cases]
    empty: Record = dict.fromkeys(next(one for one in found if one is not None))
    return [
        {"case": case.label, **(one or empty), "refusal": case.refusal if isinstance(case, Refused) else None}
        for case, one in zip(cases, found, strict=True)
    ]


def rows(cases: Columns, *, every: bool = True) -> list[tuple[str, ...]]:
    """(mark, figure, one value per case); the lowest peak is named. Without `every`, what differs, the peak and the verdict."""
    answers = [labelled(COMPARED, case.estimate, "terminal") for case in cases if isinstance(case, Case)]
    peaks = {case.estimate.peak_stage.peak_allocated_bytes for case in cases if isinstance(case, Case)}
    table = []
    for name in answers[0]:
        values = [
            _value(case, one, name, min(peaks) if len(peaks) > 1 else None) for case, one in _beside(cases, answers)
        ]
        differs = len({one[name] for one in answers}) > 1
        if every or differs or name in (PEAK, VERDICT):
            table.append((MARK if differs else "", name, *values))
    return table


def _beside(cases: Columns, answers: Sequence[dict[str, str]]) -> Iterator[tuple[Case | Refused, dict[str, str]]]:
    """Every case with its figures, those that are refused with none."""
    each = iter(answers)
    yield from ((case, next(each) if isinstance(case, Case) else {}) for case in cases)


def _value(case: Case | Refused, found: dict[str, str], name: str, lowest: int | None) -> str:
    if isinstance(case, Refused):
        return f"{REFUSED}: {case.refusal}" if name == VERDICT else NOTHING
    best = name == PEAK and case.estimate.peak_stage.peak_allocated_bytes == lowest
    return found[name] + (BEST if best else "")


def notes(cases: Columns) -> list[str]:
    """What was assumed and warned about; a note of all cases once, others with the case's name."""
    return [*_noted(cases, "assumed", _assumptions), *_noted(cases, "warning", lambda one: one.job.warnings)]


def _assumptions(one: Estimate) -> tuple[str, ...]:
    """What was decided for a run and for its step time."""
    return (*assumptions(one), *_priced(one))


def _noted(cases: Columns, mark: str, of: Callable[[Estimate], Sequence[str]]) -> Iterator[str]:
    """The notes of one kind behind their mark, each once."""
    answered = [case for case in cases if isinstance(case, Case)]
    said = [of(case.estimate) for case in answered]
    lines = (
        f"{mark}: {note}" if all(note in other for other in said) else f"{mark}: {case.label}: {note}"
        for case, own in zip(answered, said, strict=True)
        for note in own
    )
    yield from dict.fromkeys(lines)


def short_notes(cases: Columns, width: int) -> list[str]:
    """What was assumed in a few words, as many of them as are one line, and the warnings."""
    answered = [case.estimate for case in cases if isinstance(case, Case)]
    every = (note for one in answered for note in _assumptions(one))
    short = {words.partition(" (")[0]: words for words in reversed(shorts_of(every))}
    words = list(reversed(short.values()))
    kept = next((count for count in range(len(words), 1, -1) if len(_assumed(words, count)) <= width), 1)
    said = [_assumed(words, kept)] if words else []
    return [*said, *_noted(cases, "warning", lambda one: one.job.warnings)]


def _assumed(words: Sequence[str], count: int) -> str:
    """So many of the words, and how many more there are."""
    more = f" and {len(words) - count} more" if count < len(words) else ""
    return f"Assumed: {', '.join(words[:count])}{more} (--all: everything)."


def as_json(cases: Columns) -> dict[str, Any]:
    """The compared figures, what differs, and every whole estimate."""
    table = rows(cases)
    return {
        "schema": "megatron-memory-compare/1",
        "cases": [_case(case) for case in cases],
        "answers": list(answers(cases)),
        "changes": list(changes(cases)),
        "differs": [row[1] for row in table if row[0]],
        "figures": {row[1]: list(row[2:]) for row in table},
        **differences([case.estimate if isinstance(case, Case) else None for case in cases]),
    }


def _case(case: Case | Refused) -> dict[str, Any]:
    if isinstance(case, Refused):
        return {"label": case.label, "refusal": case.refusal}
    return {"label": case.label, "estimate": case.estimate.to_dict()}


# -- what differs ----------------------------------------------------------------------------------------------------------

MOST_TENSORS = 100
"""Tensors of a document; the bytes of all others stand beside them."""
WHERE = re.compile(r" ?chunk \d+[. ]?|(?<=layers\.)\d+(?:-\d+)?\.")
"""Of a tensor's name the chunk and the layers that it is in, which a layout moves."""
Cases = Sequence[Estimate | None]
"""Estimates side by side, None for one that is refused."""


def differences(cases: Cases) -> dict[str, Any]:
    """`settings` whose values differ, `parts` and `tensors` at the peaks of the fullest stages: a value for each case, null where it is
    refused."""
    return {"settings": _settings(cases), "parts": _parts(cases), **_tensors(cases)}


def _each(cases: Cases, value: Callable[[Estimate], Any]) -> list[Any]:
    return [None if one is None else value(one) for one in cases]


def _settings(cases: Cases) -> list[dict[str, Any]]:
    """Settings by name, as they are resolved, with a value for each case."""
    found = _each(cases, _all_settings)
    answered = [one for one in found if one is not None]
    names = dict.fromkeys(name for one in answered for name in one)
    return [
        {"name": name, "values": [None if one is None else one.get(name) for one in found]}
        for name in names
        if any(one.get(name) != answered[0].get(name) for one in answered)
    ]


def _all_settings(one: Estimate) -> dict[str, Any]:
    """Every setting of a run, and what follows from the degrees."""
    training = training_section(one.job)
    env = training.pop("env")
    rollout = settings_of(one.job.rollout)
    return {"name": one.job.name, **layout_section(one), **training, **rollout, **env, **config_section(one.job.model)}


def _parts(cases: Cases) -> list[dict[str, Any]]:
    """The parts of a peak, in the order of a breakdown."""
    found = _each(cases, lambda one: one.peak_stage.breakdown_bytes)
    return [{"part": part, "bytes": [one and one[part] for one in found]} for part in PARTS]


def _tensors(cases: Cases) -> dict[str, Any]:
    """Tensors by part and name, whatever chunk and layers they are in: the largest differences first."""
    found: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0] * len(cases))
    for place, one in enumerate(cases):
        for row in one.peak_stage.rows if one is not None else ():
            found[row.part, WHERE.sub("", row.name)][place] += row.nbytes
    answered = [place for place, one in enumerate(cases) if one is not None]

    def spread(sizes: list[int]) -> int:
        return max(sizes[place] for place in answered) - min(sizes[place] for place in answered)

    order = sorted(found, key=lambda key: (-spread(found[key]), -max(found[key]), key))
    shown, others = order[:MOST_TENSORS], order[MOST_TENSORS:]
    totals = [sum(found[key][place] for key in others) for place in range(len(cases))]
    return {
        "tensors": [
            {"part": key[0], "name": key[1], "bytes": _known(cases, found[key]), "difference": spread(found[key])}
            for key in shown
        ],
        "other_tensors": {"count": len(others), "bytes": _known(cases, totals)},
    }


def _known(cases: Cases, sizes: Sequence[int]) -> list[int | None]:
    """A size for each case, None where it is refused."""
    return [None if one is None else size for one, size in zip(cases, sizes, strict=True)]


def answers(cases: Columns) -> Iterator[str]:
    """The verdict of each case, or why it is refused."""
    for case in cases:
        said = f"{REFUSED}: {case.refusal}" if isinstance(case, Refused) else verdict_sentence(case.estimate)
        yield f"{case.label}: {said}"


def changes(cases: Columns) -> Iterator[str]:
    """What each case has more and less than the one before it; those that are refused are passed over."""
    answered = [case for case in cases if isinstance(case, Case)]
    for before, after in pairwise(answered):
        yield f"{after.label} beside {before.label}: {change(before.estimate, after.estimate)}"


def header(cases: Columns) -> tuple[str, ...]:
    """The column names."""
    return ("", "", *(case.label for case in cases))


def markdown(cases: Columns, *, every: bool) -> str:
    """A Markdown table."""
    return markdown_table(header(cases), rows(cases, every=every))


_LATEX = {
    "\\": r"\textbackslash{}",
    **{c: "\\" + c for c in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}


def latex(cases: Columns, *, every: bool) -> str:
    """A LaTeX tabular."""

    def line(cells: Sequence[str]) -> str:
        return " & ".join("".join(_LATEX.get(c, c) for c in cell) for cell in cells) + r" \\"

    body = [line(row) for row in rows(cases, every=every)]
    columns = "ll" + "r" * len(cases)
    parts = [
        rf"\begin{{tabular}}{{{columns}}}",
        r"\hline",
        line(header(cases)),
        r"\hline",
        *body,
        r"\hline",
        r"\end{tabular}",
    ]
    return "\n".join(parts) + "\n"


def as_tables(cases: Columns, console: Console, *, every: bool, lines: int = sys.maxsize) -> Iterator[Table]:
    """Tables of as many cases as fit the terminal without cutting a word.

    Where there are fewer lines than figures the table is without those that say least (`LAST`), unless `every` is wanted.
    """
    found = [row for row in rows(cases, every=every) if every or row[1] not in ANSWERED]
    for name in () if every else LAST:
        if len(found) + HEAD > lines:
            found = [row for row in found if row[1] != name]
    first = 0
    while first < len(cases):
        last = len(cases)
        while last > first + 1 and needed(_table(cases, found, first, last, every), console).minimum > console.width:
            last -= 1
        yield _table(cases, found, first, last, every)
        first = last


def _table(cases: Columns, found: Sequence[tuple[str, ...]], first: int, last: int, every: bool) -> Table:
    """A table of some of the cases; without the rows that do not differ there is nothing to mark."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    marks = 1 if every else 0
    for _ in range(marks + 1):
        table.add_column("", overflow="fold")
    for case in cases[first:last]:
        table.add_column(Text(case.label.replace(",", ", ")), justify="right", overflow="fold")
    for mark, name, *values in found:
        shown = [
            REFUSED if isinstance(case, Refused) and name == VERDICT else value
            for case, value in zip(cases, values, strict=True)
        ]
        cells = ((mark, name) if every else (name,)) + tuple(shown[first:last])
        table.add_row(*map(Text, cells), style="bold" if every and mark else "")
    return table


def below(cases: Columns, *, every: bool) -> Iterator[str]:
    """How many figures are not shown because they do not differ."""
    count = len(rows(cases)) - len(rows(cases, every=False))
    if count and not every:
        yield f"{counted(count, 'figure')} the same in all cases (--all shows all)"


TEXT = {"markdown": markdown, "latex": latex}
