"""Megatron-LM's report by layer (pull request 5662, open): what each layer keeps for its backward, in MiB.

Read are the tables of the forward whose columns have headings; what the mean and the most run over (microbatches of the window) the report
does not say. A report whose memory source is not PRECISE has no figures of single layers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from ..job.hardware import MIB
from ..validation.logs import MOST_BYTES

HEAD, FORWARD, PRECISE = "[per-layer report]", "-- forward --", "memory source = PRECISE"
RETAINED = "retained"
CELL = re.compile(r"(-?\d{1,12}(?:\.\d{1,6})?)/\s*(-?\d{1,12}(?:\.\d{1,6})?)")
LAYER = re.compile(r"\s*(\d{1,6})\s+([A-Za-z]\w{0,30})\s")


class LayerReport(NamedTuple):
    """A row of a forward table: the layer's number from 0, its type, and the mean and most bytes that it keeps."""

    number: int
    kind: str
    mean_bytes: int
    most_bytes: int
    line: int


def layer_reports(text: str) -> list[LayerReport]:
    """The rows of the last report by layer of a log."""
    reports = text.split(HEAD)
    if len(reports) == 1:
        return []
    return list(_rows(reports[-1], text.count("\n") - reports[-1].count("\n") + 1))


def _rows(report: str, line: int) -> Iterator[LayerReport]:
    """The rows of a report that begins in a line: those below the heads of its forward table, up to a line that is none."""
    precise = forward = False
    place = None
    for number, words in enumerate(report.split("\n"), line):
        precise = precise or PRECISE in words
        if FORWARD in words:
            forward = precise
        elif forward and place is None and RETAINED in words:
            place = words.split().index(RETAINED) - words.split().index("type") - 1
        elif place is not None:
            layer, cells = LAYER.match(words), CELL.findall(words)
            if layer is None or len(cells) <= place:
                return
            mean, most = (int(float(word) * MIB) for word in cells[place])
            if 0 <= mean <= MOST_BYTES and 0 <= most <= MOST_BYTES:
                yield LayerReport(int(layer[1]), layer[2], mean, most, number)
