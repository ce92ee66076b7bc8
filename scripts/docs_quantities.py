"""Tables of the quantities that documents have, and the same as types of the page: web/src/quantities.ts.

Run by `make pages`; a test holds both to what is made here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from docs_markdown import ROOT, markdown

TARGET = ROOT / "web" / "src" / "quantities.ts"
HEAD = """// The figures of the engine's documents, made by scripts/docs_quantities.py from quantities.csv; not edited by hand.

export type Value = string | number | boolean | null | readonly (string | number | boolean)[];
export type Settings = Readonly<Record<string, Value>>;
export type Bounds = { readonly low: number; readonly high: number };
"""
NUMBER = "number"
NUMBERS = "Readonly<Record<string, number>>"
TYPES = {
    **dict.fromkeys(("bytes", "count", "seconds", "share", "rate"), NUMBER),
    **dict.fromkeys(("bytes by name", "seconds by name", "rates by name"), NUMBERS),
    "range": "Bounds",
    "ranges by name": "Readonly<Record<string, Bounds>>",
    "counts": "readonly number[]",
    "words": "readonly string[]",
    "word": "string",
    "flag": "boolean",
    "settings": "Settings",
    "column": "readonly (number | null)[]",
    "value": "Value",
    "values": "readonly Value[]",
    "counts by name": NUMBERS,
    "texts by name": "Readonly<Record<string, readonly string[]>>",
}
KINDS = {
    "count": "number",
    "counts": "numbers",
    "word": "text",
    "words": "texts",
    "flag": "true or false",
    "rate": "number",
    "range": "bytes, `low` and `high`",
    "column": "numbers or nulls",
}
"""Units as the page of JSON names them, where the unit itself says too little."""
SHOWN_ELSEWHERE = ("estimate", "stage", "term", "tensor", "plan", "plan_layout", "change", "counts")
"""Subjects with a table of their own, where others refer to them."""


def subjects() -> list[str]:
    """Every subject that a document has something of."""
    from megatron_memory_estimator.report.quantities import rows

    return [name for name in rows() if name != "compared"]


def table(subject: str) -> str:
    """The keys of a subject with their units and meanings; those of objects below their own."""
    return markdown(("key", "unit", "what"), _lines(subject, ""))


def _lines(subject: str, above: str) -> Iterator[tuple[str, str, str]]:
    from megatron_memory_estimator.report.quantities import documented

    for row in documented(subject):
        unit = row["unit"].removesuffix("?")
        nullable = " or null" if row["unit"].endswith("?") else ""
        yield f"`{above}{row['name']}`", KINDS.get(unit, unit) + nullable, row["meaning"]
        for fields in row["fields"].split():
            if fields not in SHOWN_ELSEWHERE:
                yield from _lines(fields, f"{above}{row['name']}{'[]' if unit == 'objects' else ''}.")


def text() -> str:
    """The types of the page."""
    from megatron_memory_estimator.report.quantities import documented

    parts = [HEAD]
    for subject in subjects():
        lines = [f"  readonly {row['name']}: {_type(row)};" for row in documented(subject)]
        parts.append(f"export type {type_name(subject)} = {{\n" + "\n".join(lines) + "\n};\n")
    return "\n".join(parts)


def type_name(subject: str) -> str:
    return "".join(word.capitalize() for word in subject.split("_"))


def _type(row: Mapping[str, str]) -> str:
    unit = row["unit"].removesuffix("?")
    found = " & ".join(map(type_name, row["fields"].split())) if row["fields"] else TYPES[unit]
    if unit == "objects by name":
        found = f"Readonly<Record<string, {found}>>"
    if unit == "objects":
        found = f"readonly ({found})[]" if " " in found else f"readonly {found}[]"
    return f"{found} | null" if row["unit"].endswith("?") else found


TABLES = {f"quantities of {name}": partial(table, name) for name in subjects()}
