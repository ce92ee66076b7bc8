"""What is made of the tools' models: the checks' `arguments.json`, the page's types of requests, the table of docs/reference/server.md."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import docs_quantities
from docs_markdown import ROOT, markdown

HEAD = """// The tools of the engine: what each is asked with and what it answers, made by scripts/docs_tools.py; not edited by hand.

import type * as of from "./quantities";
"""
KINDS = {"string": "a word", "integer": "a whole number", "boolean": "true or false", "object": "an object"}
LISTS = {"string": "a list of words", "object": "a list of objects"}
TYPES = {
    "a word": "string",
    "a whole number": "number",
    "true or false": "boolean",
    "an object": "object",
    "a list of words": "readonly string[]",
    "a list of objects": "readonly object[]",
}


class Made(NamedTuple):
    """A file that is made whole."""

    TARGET: Any
    made: Any

    def text(self) -> str:
        """Its text."""
        return str(self.made())


def kinds() -> dict[str, dict[str, str]]:
    """For every tool the kind of each argument, in words."""
    from megatron_memory_estimator.service.schema import TOOLS

    models = {name: tool.arguments.model_json_schema()["properties"] for name, tool in TOOLS.items()}
    return {
        name: {**{word: _kind(one) for word, one in fields.items()}, "detail": "a word"}
        for name, fields in models.items()
    }


def _kind(schema: dict[str, Any]) -> str:
    """The kind of an argument; a text that may be an object is a word: the object becomes its text."""
    several = [one for one in schema.get("anyOf", [schema]) if one.get("type") != "null"]
    first = several[0]
    if first["type"] == "array":
        return LISTS[first["items"]["type"]]
    return KINDS[first["type"]]


def arguments() -> str:
    """The text of `arguments.json`: a tool a line."""
    lines = ",\n".join(f"{json.dumps(tool)}: {json.dumps(found)}" for tool, found in kinds().items())
    return f"{{\n{lines}\n}}\n"


def requests() -> str:
    """The types of the page."""
    from megatron_memory_estimator.service.schema import TOOLS

    lines = []
    for name, tool in TOOLS.items():
        if tool.own_path:
            asked = "; ".join(f"readonly {word}?: {_type(word, kind)}" for word, kind in kinds()[name].items())
            one = f"of.{docs_quantities.type_name(tool.document)}"
            answer = f"readonly {one}[] | {one}" if tool.rows else one
            lines.append(f"  {name}: {{ readonly asked: {{ {asked} }}; readonly answer: {answer} }};")
    body = "\n".join(lines)
    shortened = ", ".join(json.dumps(name) for name, tool in TOOLS.items() if tool.summary)
    short = (
        "/** Tools that answer in short where the whole document is not asked for. */\n"
        f"export const SHORTENED: ReadonlySet<string> = new Set([{shortened}]);"
    )
    tail = 'export type Tool = keyof Tools;\nexport type Asked = Tools[Tool]["asked"];'
    return f"{HEAD}\n{short}\n\nexport type Tools = {{\n{body}\n}};\n\n{tail}\n"


def _type(word: str, kind: str) -> str:
    return f"{TYPES[kind]} | object | null" if word == "text" else f"{TYPES[kind]} | null"


def serve_tools() -> str:
    """A row for each tool that is served."""
    from megatron_memory_estimator.report.quantities import documented
    from megatron_memory_estimator.service.schema import TOOLS

    rows = []
    for name, tool in TOOLS.items():
        if not tool.own_path:
            continue
        keys = documented(tool.document)
        schema = next((f"`{row['meaning']}`: " for row in keys if row["name"] == "schema"), "")
        named = ", ".join(f"`{row['name']}`" for row in keys if row["name"] != "schema")
        answer = f"{'a list, or one, of ' if tool.rows else ''}{schema}{named}"
        words = ", ".join(f"`{word}`" for word in tool.arguments.model_fields) or "none"
        method = "POST, GET" if tool.read else "POST"
        rows.append((f"{method} `/api/v1/{name}`", tool.says, words, answer))
    return markdown(("path", "what", "arguments", "the document"), rows)


FILES = (
    Made(ROOT / "src" / "megatron_memory_estimator" / "service" / "arguments.json", arguments),
    Made(ROOT / "web" / "src" / "tools.ts", requests),
)
TABLES = {"serve_tools": serve_tools}
