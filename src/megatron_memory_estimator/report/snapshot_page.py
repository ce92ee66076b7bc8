"""A memory snapshot as one HTML file: no script, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from ..evidence.account import Account, Group
from ..evidence.beside import Left
from .html import fragment, sentence, table
from .quantities import gib
from .snapshot import LITTLE, Ran, notes
from .snapshot import sentence as said

PAGE = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    "<title>{}</title><style>body{{font:14px/1.5 system-ui,sans-serif;margin:24px;max-width:1200px}}@media(prefers-color-scheme:dark)"
    "{{body{{background:#111;color:#ddd}}}}h2{{font-size:16px;margin:20px 0 4px}}div{{overflow-x:auto}}</style><body>{}"
)
GROUPS = ("GiB", "blocks", "largest GiB", "part", "tensor", "line")
LEFT = ("GiB", "blocks", "part", "tensor", "line")


def snapshot_page(name: str, found: Account, run: Ran | None = None) -> str:
    """The account of a snapshot, and its comparison with a run, as a page."""
    parts = [f"<h1>{escape(name)}</h1>"]
    if run is not None:
        parts += [sentence(run.sentence, "#0072b2"), *map(sentence, run.hints)]
        parts += _section("In the snapshot alone", LEFT, _left(run.beside.only_seen))
        parts += _section("In the prediction alone", LEFT, _left(run.beside.only_predicted))
    parts += [sentence(said(found), "#0072b2"), *map(sentence, notes(found))]
    parts += _section("Who made it", GROUPS, _groups(found.groups))
    if len(found.steps) > 1:
        steps = [[str(at), gib(one.peak), gib(one.end)] for at, one in enumerate(found.steps, 1)]
        parts += _section("Steps", ("step", "peak GiB", "behind it GiB"), steps)
        parts += _section("What the last step keeps more", GROUPS, _groups(found.grown))
    parts += _section("What each pass leaves behind", GROUPS, _groups(found.piled)) if found.piled else []
    pools = [
        [
            "private" if one.private else "shared",
            str(one.stream),
            one.kind,
            gib(one.reserved),
            gib(one.allocated),
            gib(one.hole),
        ]
        for one in found.pools
    ]
    parts += _section(
        "Pools at the dump", ("pool", "stream", "requests", "reserved GiB", "in tensors GiB", "largest hole GiB"), pools
    )
    parts += _section("In segments that are half empty", GROUPS, _groups(found.in_the_way))
    return PAGE.format(escape(name), fragment(parts))


def _section(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A title and a table; nothing where there are no rows."""
    cells = [list(row) for row in rows]
    return (
        [f"<h2>{escape(title)}</h2>", table(heads, cells, ("part", "tensor", "line", "pool", "requests"))]
        if cells
        else []
    )


def _groups(groups: Iterable[Group]) -> list[list[str]]:
    return [
        [
            gib(one.nbytes),
            str(one.blocks),
            gib(one.largest),
            *map(escape, (one.site.part, one.site.tensor, one.site.where)),
        ]
        for one in groups
        if one.nbytes >= LITTLE
    ]


def _left(left: Iterable[Left]) -> list[list[str]]:
    return [
        [gib(one.nbytes), str(one.blocks), *map(escape, (one.part, one.tensor, one.where))]
        for one in left
        if one.nbytes >= LITTLE
    ]
