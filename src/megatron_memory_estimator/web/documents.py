"""What the tools answer, as the OpenAPI description has it: every key of a document and its kind (docs/reference/json.md explains them)."""

from __future__ import annotations

from typing import Any, NamedTuple

Kinds = dict[str, str]
"""Kinds of JSON values by key, several joined by `|`."""


class Document(NamedTuple):
    """A tool in a few words, its document with all details, and an example of arguments."""

    says: str
    schema: str
    kinds: Kinds
    example: dict[str, Any]
    rows: bool = False  # the document is a list of these, or one of them


RUN: dict[str, Any] = {"model": "Qwen/Qwen3-8B", "num_gpus": 8, "settings": {"tp": 2}}
PIPELINE: dict[str, Any] = {"model": "Qwen/Qwen3-8B", "num_gpus": 8, "settings": {"pp": 2}}
DOCUMENTS: dict[str, Document] = {
    "estimate": Document(
        "Whether a run fits its GPU, what every pipeline stage holds, and when it peaks", "megatron-memory-estimate/1",
        {"model": "object", "layout": "object", "training": "object", "stages": "array", "peak": "object", "routing": "object|null",
         "verdict": "object", "gpus": "array", "assumptions": "array", "warnings": "array"},
        RUN,
    ),
    "timeline": Document(
        "The memory of a stage along one training step", "megatron-memory-timeline/1",
        {"model": "string", "pp_rank": "integer", "gpu": "string", "gpu_memory_bytes": "integer", "steady_allocated_bytes": "integer",
         "peak_allocated_bytes": "integer", "peak_event": "string", "step_s": "number", "timeline_s": "number",
         "left_out": "object|null", "moments": "array"},
        PIPELINE | {"stage": 0},
    ),
    "lanes": Document(
        "One training step of all stages beside one another, in columns", "megatron-memory-lanes/1",
        {"gpu": "string", "gpu_memory_bytes": "integer", "step_s": "number", "timeline_s": "number", "events": "array",
         "labels": "array", "stages": "array"},
        PIPELINE,
    ),
    "moment": Document(
        "Every tensor that is alive at the highest of a moment", "megatron-memory-moment/1",
        {"pp_rank": "integer", "moment": "integer", "event": "string", "allocated_bytes": "integer", "tensors": "array"},
        PIPELINE | {"stage": 0, "moment": 3},
    ),
    "explain": Document(
        "The named tensors that are alive on a stage at its peak, or between two steps", "megatron-memory-explain/1",
        {"pp_rank": "integer", "at": "string", "event": "string", "allocated_bytes": "integer", "tensors": "array",
         "owned": "array"},
        RUN | {"at": "steady"},
    ),
    "advise": Document(
        "What would make a run fit, each change with what it saves and costs; or faster, where it fits with room",
        "megatron-memory-advice/1",
        {"limit_bytes": "integer", "assumptions": "array", "now": "object", "purpose": "string", "advice": "array"},
        RUN,
    ),
    "plan": Document(
        "The best legal layouts that fit, with launch arguments", "megatron-memory-plan/1",
        {"objective": "string", "limit_bytes": "integer", "interrupted": "boolean", "fewest_gpus": "object|integer|null",
         "space": "object", "counts": "object", "plans": "array", "tight_plans": "array", "front": "array", "least": "object|null",
         "assumptions": "array", "warnings": "array"},
        {"model": "Qwen/Qwen3-8B", "num_gpus": 8, "axes": {"tp": "1,2", "cp": "1"}, "top": 2},
    ),
    "compare": Document(
        "Several runs side by side: the estimate of each, and the figures that differ", "megatron-memory-compare/1",
        {"cases": "array", "differs": "array", "figures": "object", "settings": "array", "parts": "array", "tensors": "array",
         "other_tensors": "object"},
        {"models": ["Qwen/Qwen3-8B"], "layouts": [{"tp": 1}, {"tp": 4}], "num_gpus": 8},
    ),
    "choices": Document(
        "The values of settings, and why each that is refused is refused",
        "megatron-memory-choices/1", {"choices": "object"},
        RUN | {"names": ["tp"]},
    ),
    "launch": Document(
        "A run as launch arguments", "",
        {"megatron_lm": "string", "yaml": "string", "bridge": "string", "without_argument": "object"}, RUN,
    ),
    "export": Document("A table of a run as text", "", {"name": "string", "text": "string"}, RUN | {"what": "stages"}),
    "models": Document(
        "The bundled models: all, those with a word in their names, or one", "",
        {"name": "string", "source": "string", "model_type": "string", "num_parameters": "object|null", "refused": "string|null",
         "not_counted": "string|null"},
        {"model": "Qwen/Qwen3-8B"}, rows=True,
    ),
    "gpus": Document(
        "The GPUs that estimates are judged against", "",
        {"name": "string", "memory_bytes": "integer", "aliases": "array", "source": "string"}, {"gpu": "H100"}, rows=True,
    ),
    "settings": Document(
        "Every setting that can be given, with its kind and default", "megatron-memory-settings/1",
        {"topics": "array", "settings": "array"}, {},
    ),
}  # fmt: skip


SUMMARISED = ("advise", "compare", "estimate", "explain", "models", "plan")
"""Tools that have a summary too."""


def schema_of(document: Document) -> dict[str, Any]:
    """The JSON schema of a document with all details."""
    properties: dict[str, Any] = {name: {"type": kinds.split("|")} for name, kinds in document.kinds.items()}
    if document.schema:
        properties = {"schema": {"const": document.schema}, **properties}
    found = {"type": "object", "required": list(properties), "properties": properties}
    return {"anyOf": [found, {"type": "array", "items": found}]} if document.rows else found


def answers_of(tool: str, document: Document) -> dict[int | str, dict[str, Any]]:
    """The responses of a tool."""
    schema = schema_of(document)
    if tool in SUMMARISED:
        short = {
            "type": "object",
            "description": 'The summary, with `"detail": "summary"`: figures in GiB where a name says so.',
        }
        schema = {"anyOf": [schema, short]}
    said = f"{document.says}. Bytes are whole numbers; docs/reference/json.md explains every key."
    lines = 'Lines `{"progress": {...}}`, then `{"answer": document}` or `{"error": sentence}`, with `Accept: application/x-ndjson`.'
    text = {"type": "string", "description": lines}
    done = {
        "description": said,
        "content": {"application/json": {"schema": schema}, "application/x-ndjson": {"schema": text}},
    }
    return {200: done, **refusals()}


def refusals() -> dict[int | str, dict[str, Any]]:
    """The responses that every path has."""
    error = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
    example = {"error": "tensor_model_parallel_size=3 does not divide num_attention_heads=32; use 1, 2, 4, 8, 16 or 32"}
    meanings = {
        400: "The body cannot be parsed.", 403: "The Host, the Origin or Sec-Fetch-Site is that of another site.",
        404: "There is no such tool.", 405: "The method is not one of this path's.", 408: "The body did not arrive in time.",
        413: "The body is longer than 2 MiB.", 415: "The content type is not application/json.",
        422: "The request is refused, with the rule, the numbers and the fix; or it takes too long.",
        429: "So many requests wait that this one is not taken.",
    }  # fmt: skip
    content = {"application/json": {"schema": error, "example": example}}
    return {status: {"description": text, "content": content} for status, text in meanings.items()}
