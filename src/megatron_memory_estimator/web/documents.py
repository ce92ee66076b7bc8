"""The documents of the tools as OpenAPI has them, made of the quantities that they have (docs/reference/json.md explains each)."""

from __future__ import annotations

from typing import Any, get_args

from ..report.quantities import Several, documented
from ..service.schema import Tool

KINDS = {
    "seconds": "number",
    "share": "number",
    "rate": "number",
    "flag": "boolean",
    "word": "string",
    "bytes": "integer",
    "count": "integer",
}
"""Kinds of JSON of single values by unit; several are an array, all others an object."""


def schema_of(tool: Tool) -> dict[str, Any]:
    """The JSON schema of a document with all details."""
    properties = {row["name"]: _value(row) for row in documented(tool.document)}
    found = {"type": "object", "required": list(properties), "properties": properties}
    return {"anyOf": [found, {"type": "array", "items": found}]} if tool.rows else found


def _value(row: dict[str, str]) -> dict[str, Any]:
    """The schema of a quantity; that of a schema is its name."""
    if row["name"] == "schema":
        return {"const": row["meaning"]}
    unit = row["unit"].removesuffix("?")
    kinds = [
        KINDS.get(unit) or ("array" if unit in get_args(Several) else "object"),
        *(["null"] if row["unit"].endswith("?") else []),
    ]
    return {"type": kinds, "description": row["meaning"]}


def answers_of(tool: Tool) -> dict[int | str, dict[str, Any]]:
    """The responses of a tool."""
    schema = schema_of(tool)
    if tool.summary:
        short = {
            "type": "object",
            "description": 'The summary, with `"detail": "summary"`: figures in GiB where a name says so.',
        }
        schema = {"anyOf": [schema, short]}
    said = f"{tool.says}. Bytes are whole numbers; docs/reference/json.md explains every key."
    lines = 'Lines `{"progress": {...}}`, then `{"answer": document}` or `{"error": sentence}`, with `Accept: application/x-ndjson`.'
    text = {"type": "string", "description": lines}
    done = {
        "description": said,
        "content": {"application/json": {"schema": schema}, "application/x-ndjson": {"schema": text}},
    }
    return {200: done, **refusals()}


def refusals() -> dict[int | str, dict[str, Any]]:
    """The responses that every path has."""
    question = {
        "type": "object",
        "required": ["what", "option", "values"],
        "properties": {
            "what": {"type": "string"},
            "option": {"type": "string"},
            "values": {"type": "array", "items": {"type": "string"}},
        },
    }
    error = {
        "type": "object",
        "required": ["error"],
        "properties": {"error": {"type": "string"}, "questions": {"type": "array", "items": question}},
    }
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
