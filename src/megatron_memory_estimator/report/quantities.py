"""Quantities: every figure that a door shows, said once with its unit, label and meaning.

`quantities.csv` has a row for each figure of a subject: a stage, a verdict, an estimate among others, a plan, a change. Each door is a
selection of such rows: JSON (`document`), rows for other programs (`record`), words for people (`labelled`), short rows for agents
(`brief`). A quantity stands at every door of its subject but where its row names doors, so a new row is a new figure everywhere.
The tables of docs/reference/json.md and the page's types are made of the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, Literal, get_args

from ..dataclass import dataclass
from ..device.terms import Range
from ..job.hardware import GIB
from ..tables import rows_beside

Scalar = Literal["bytes", "count", "seconds", "share", "rate", "flag", "word", "value"]
Several = Literal["counts", "words", "values", "column", "objects"]
ByName = Literal[
    "bytes by name",
    "ranges by name",
    "seconds by name",
    "rates by name",
    "counts by name",
    "texts by name",
    "objects by name",
]
Unit = Literal[Scalar, Several, ByName, "range", "settings", "object"]
"""A `range` is bytes, `settings` values by name, a `column` numbers or nulls; `object` and `objects` have fields of their own."""
Door = Literal["json", "table", "terminal", "notebook", "agent"]
"""`table` is CSV, Markdown, frames and `table()`; `terminal` the command's tables; `agent` the short answers of MCP."""
Of = Callable[[Any], Any]


@dataclass(frozen=True)
class Quantity:
    """One figure of a subject.

    `name` is its key; a name that ends in `_bytes` has its unit there. `of` takes it from the subject. `label` heads its column, `form`
    writes it where its unit does not say how. `column` is its name in tables where that is another. Where it is `optional` it may be
    null. `fields` are those of an object, or of each of several.
    """

    name: str
    unit: Unit
    meaning: str
    of: Of
    at: frozenset[str]
    label: str = ""
    form: Of | None = None
    column: str = ""
    fields: tuple[Quantity, ...] = ()
    optional: bool = False


NOTHING = "-"
"""What stands for a figure that is not known."""
Table = tuple[Quantity, ...]
EVERY_DOOR = frozenset(get_args(Door))


@cache
def rows() -> dict[str, list[dict[str, str]]]:
    """The rows of `quantities.csv` by subject."""
    found: dict[str, list[dict[str, str]]] = {}
    for row in rows_beside(__file__, "quantities.csv"):
        found.setdefault(row["subject"], []).append(row)
    return found


def documented(subject: str) -> list[dict[str, str]]:
    """The rows of a subject that its document has."""
    return [row for row in rows()[subject] if "json" in (row["at"].split() or EVERY_DOOR)]


def table(subject: str, made: Mapping[str, Of] | None = None, forms: Mapping[str, Of] | None = None) -> Table:
    """The quantities of a subject.

    A quantity is the subject's attribute of its name, or what its row says: a path of attributes, or one of the functions `made` by
    name. `forms` are functions that write a subject's quantity, by the names that rows use.
    """
    return tuple(_quantity(row, made or {}, forms or {}) for row in rows()[subject])


def _fields(subjects: str) -> Table:
    """The quantities of what an object holds: they stand in documents alone, so nothing writes them."""
    return tuple(_quantity(row, {}, None) for subject in subjects.split() for row in rows()[subject])


def _quantity(row: Mapping[str, str], made: Mapping[str, Of], forms: Mapping[str, Of] | None) -> Quantity:
    path, unit = row["of"] or row["name"], row["unit"].removesuffix("?")
    assert unit in get_args(Unit), row
    return Quantity(
        row["name"],
        unit,  # type: ignore[arg-type]
        row["meaning"],
        made.get(path) or attrgetter(path),
        frozenset(row["at"].split()) or EVERY_DOOR,
        row["label"],
        forms[row["form"]] if row["form"] and forms is not None else None,
        row["column"],
        _fields(row["fields"]),
        row["unit"].endswith("?"),
    )


def chosen(quantities: Sequence[Quantity], door: Door, names: Iterable[str] = ()) -> list[Quantity]:
    """The quantities of a door, or those of them that are named."""
    wanted = frozenset(names)
    return [one for one in quantities if door in one.at and (not wanted or one.name in wanted)]


def document(quantities: Sequence[Quantity], subject: Any, *names: str) -> dict[str, Any]:
    """The quantities as JSON, or those that are named: ranges as `low` and `high`, objects by their fields."""
    return {one.name: _plain(one, one.of(subject)) for one in chosen(quantities, "json", names)}


def _plain(one: Quantity, value: Any) -> Any:
    if one.optional and not value:
        return None
    if one.unit == "range":
        return value._asdict()
    if one.unit == "ranges by name":
        return {name: each._asdict() for name, each in value.items()}
    if one.unit == "object" and not isinstance(value, dict):
        return document(one.fields, value)
    if one.unit == "objects":
        return [each if isinstance(each, dict) else document(one.fields, each) for each in value]
    return list(value) if isinstance(value, tuple) else value


def record(quantities: Sequence[Quantity], subject: Any) -> dict[str, Any]:
    """The quantities as a row of plain values: a range is two columns, bytes by name are a column each."""
    found: dict[str, Any] = {}
    for one in chosen(quantities, "table"):
        found |= _columns(one.column or one.name, one.of(subject))
    return found


def _columns(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, Range):
        stem = name.removesuffix("_bytes")
        return {f"{stem}_low_bytes": value.low, f"{stem}_high_bytes": value.high}
    if isinstance(value, Mapping):
        return {f"{part}_bytes": each for part, each in value.items()}
    return {name: value}


def labelled(quantities: Sequence[Quantity], subject: Any, door: Door) -> dict[str, str]:
    """The quantities by label, as people read them; bytes are GiB."""
    found: dict[str, str] = {}
    for one in chosen(quantities, door):
        if one.unit == "bytes by name":
            found |= {one.label.format(part): gib(each) for part, each in one.of(subject).items()}
        else:
            found[one.label] = text(one, subject)
    return found


def text(one: Quantity, subject: Any) -> str:
    """A quantity as people read it."""
    if one.form is not None:
        return str(one.form(subject))
    value = one.of(subject)
    if value is None:
        return NOTHING
    if isinstance(value, Range):
        return bounds_text(value)
    if one.unit == "flag":
        return "on" if value else "off"
    ways: dict[str, Of] = {"bytes": gib, "seconds": "{:.3f}".format, "share": "{:.1%}".format, "rate": "{:,.0f}".format}
    return str(ways.get(one.unit, str)(value))


def brief(quantities: Sequence[Quantity], subject: Any) -> dict[str, Any]:
    """The quantities as agents get them: bytes in GiB under names that say so, other numbers rounded as people read them."""
    found: dict[str, Any] = {}
    for one in chosen(quantities, "agent"):
        value = one.of(subject)
        if one.unit in ("bytes", "range", "bytes by name"):
            columns = _columns(one.name, value)
            found |= {f"{name.removesuffix('bytes')}gib": in_gib(each) for name, each in columns.items()}
        elif one.form is not None:
            found[one.name] = one.form(subject)
        else:
            found[one.name] = round(value, None if one.unit == "rate" else 3) if isinstance(value, float) else value
    return found


# -- how figures are written ----------------------------------------------------------------------------------------------


def gib(nbytes: int, digits: int = 2) -> str:
    """Bytes in GiB, without the unit."""
    return f"{nbytes / GIB:.{digits}f}"


def exactly(value: Range) -> str:
    """A range in GiB, one figure where both ends are the same: `71.20 to 76.03`, `71.20`."""
    return gib(value.low) if value.low == value.high else f"{gib(value.low)} to {gib(value.high)}"


def in_gib(nbytes: int) -> float:
    """Bytes in GiB, rounded as they are printed."""
    return round(nbytes / GIB, 2)


def bounds_text(value: Range) -> str:
    """A range in GiB: `71.2 to 76.0`."""
    return f"{gib(value.low, 1)} to {gib(value.high, 1)}"


def plural(count: int) -> str:
    """The plural s."""
    return "" if count == 1 else "s"
