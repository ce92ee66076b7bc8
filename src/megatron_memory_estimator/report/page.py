"""The page frozen around the documents of one run: a file of its own that opens from disk."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Iterator
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from ..errors import UnsupportedError
from ..estimator import Estimate
from .lanes import lanes_document, moment_document

POLICY = (
    "default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; img-src data: blob:; base-uri 'none'; "
    "form-action 'none'"
)
"""What the browser may load: the script and the sheet that stand in the file, by their checksums, and nothing else."""


def page_report(estimate: Estimate) -> str:
    """The page with the estimate, the step of every stage, and the tensors of its moments, as HTML in one file: of the fullest stages all
    moments, of the others the peak and what stays between steps."""
    page = {name: _file(name) for name in ("index.html", "page.css", "page.js")}
    script = page["page.js"].replace("</script", "<\\/script").strip()
    style = page["page.css"].strip()
    policy = POLICY.format(script=_checksum(script), style=_checksum(style))
    held = f'<script type="application/json" id="frozen">{_packed(frozen(estimate))}</script>'
    parts = {
        r'content="default-src[^"]*"': f'content="{policy}"',
        r'<link rel="stylesheet"[^>]*>': f"<style>{style}</style>",
        r'<script type="module"[^>]*></script>': "",
        r"<body>": f'<body>{held}<script type="module">{script}</script>',
        r"<title>[^<]*</title>": f"<title>{_escaped(estimate.job.name or 'run')}: Megatron memory</title>",
    }
    html = page["index.html"]
    for pattern, text in parts.items():
        html, found = re.subn(pattern, lambda _, text=text: text, html)  # type: ignore[misc]
        assert found == 1, pattern
    return html


def _file(name: str) -> str:
    return (files("megatron_memory_estimator") / "web" / "page" / name).read_text(encoding="utf-8")


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")


def _checksum(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _packed(document: dict[str, Any]) -> str:
    """As the page reads it: JSON, deflated without a header, in base 64."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = packer.compress(json.dumps(document, separators=(",", ":")).encode()) + packer.flush()
    return base64.b64encode(data).decode()


def frozen(estimate: Estimate, most_tensors: int | None = None) -> dict[str, Any]:
    """The documents, each with the tool and the arguments that it answers, and the address of the page."""
    name = quote(estimate.job.name or "run", safe="/")
    most = MOST_TENSORS if most_tensors is None else most_tensors
    return {"address": f"#/estimate?model={name}", "documents": list(_documents(estimate, most))}


def _documents(estimate: Estimate, most_tensors: int) -> Iterator[dict[str, Any]]:
    yield {"tool": "estimate", "arguments": {}, "answer": estimate.to_dict()}
    try:
        lanes = lanes_document(estimate)
    except UnsupportedError as error:  # of too many moments, or a GPU without rates: the estimate stands alone
        yield {"tool": "lanes", "arguments": {}, "error": str(error)}
        return
    yield {"tool": "lanes", "arguments": {}, "answer": lanes}
    both = list(zip(estimate.stages, lanes["stages"], strict=True))
    held = 0
    for stage, lane in sorted(both, key=lambda one: -one[0].peak_allocated_bytes):  # the fullest stages whole
        for first, *others in _alike(lane):
            if held >= most_tensors and first not in (lane["peak_moment"], lane["columns"]["index"][-1]):
                continue
            found = moment_document(stage, first)
            held += len(found["tensors"])
            yield {
                "tool": "moment", "arguments": {"stage": stage.pp_rank, "moment": first}, "also": others, "answer": found,
            }  # fmt: skip


MOST_TENSORS = 30_000
"""Tensors of moments from which the other stages have their peak and their end alone: a quarter of a megabyte of the file."""
SAME = ("event", "chunk", "beside_chunk", "in_flight", "highest_bytes", "label")
"""What moments have in common whose tensors are the same but for the number of the microbatch."""


def _alike(lane: dict[str, Any]) -> Iterator[list[int]]:
    """The moments of a lane that have the same tensors, those of the peak and the end first."""
    columns = lane["columns"]
    known: dict[tuple[Any, ...], list[int]] = {}
    ends = (lane["peak_moment"], columns["index"][-1])
    for place in sorted(range(len(columns["index"])), key=lambda place: columns["index"][place] not in ends):
        known.setdefault(tuple(columns[name][place] for name in SAME), []).append(columns["index"][place])
    yield from known.values()
