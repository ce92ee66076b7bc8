"""The description of the API as a page of plain HTML, made from its OpenAPI description."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

Json = Mapping[str, Any]
STYLE = """:root { color-scheme: light dark }
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h2 { margin-top: 2.5rem; border-top: 1px solid; padding-top: 1rem }
code, pre { font-family: ui-monospace, monospace; font-size: .9em; overflow-wrap: anywhere }
pre { overflow-x: auto; border: 1px solid; padding: .5rem }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid }
"""


def page_of(description: Json) -> str:
    """The page of an OpenAPI description."""
    title = escape(description["info"]["title"])
    operations = [
        (path, method, operation)
        for path, methods in description["paths"].items()
        for method, operation in methods.items()
    ]
    links = "".join(
        f'<li><a href="#{one["operationId"]}">{_name(path, method)}</a></li>' for path, method, one in operations
    )
    body = "".join(part for one in operations for part in _operation(*one, description))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title} API</title>'
        '<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
        '<link rel="stylesheet" href="docs.css"></head><body>'
        f"<h1>{title} API</h1><p>{escape(description['info']['description'])}</p>"
        f'<p><a href="openapi.json">OpenAPI description</a></p><ul>{links}</ul>{body}</body></html>'
    )


def _name(path: str, method: str) -> str:
    return f"<code>{method.upper()} {escape(path)}</code>"


def _operation(path: str, method: str, operation: Json, description: Json) -> Iterator[str]:
    """A path with its arguments, an example, and what it answers."""
    yield f'<h2 id="{operation["operationId"]}">{_name(path, method)}</h2>'
    yield f"<p>{escape(operation.get('description') or operation.get('summary', ''))}</p>"
    schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    named = description.get("components", {}).get("schemas", {}).get(schema.get("$ref", "").rpartition("/")[2], schema)
    rows = [(name, one, name in named.get("required", ())) for name, one in named.get("properties", {}).items()]
    rows += [(one["name"], {"description": one.get("description", ""), **one["schema"]}, one.get("required")) for one in
             operation.get("parameters", ())]  # fmt: skip
    if rows:
        yield "<table><tr><th>argument</th><th>kind</th><th>what</th></tr>"
        for name, one, needed in rows:
            what = escape(one.get("description", "")) + _default(one)
            yield f"<tr><td><code>{escape(name)}</code>{' (needed)' if needed else ''}</td><td>{escape(kind(one))}</td><td>{what}</td></tr>"
        yield "</table>"
    example = next(iter(schema.get("examples", ())), None)
    if example is not None:
        yield f"<p>Example:</p><pre>{escape(json.dumps(example))}</pre>"
    yield "<table><tr><th>status</th><th>answer</th></tr>"
    for status, answer in operation["responses"].items():
        yield f"<tr><td>{status}</td><td>{escape(answer['description'])}{_keys(answer)}</td></tr>"
    yield "</table>"


def kind(schema: Json) -> str:
    """The kind of a value in words."""
    if "anyOf" in schema:
        return " or ".join(kind(one) for one in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return ", ".join(map(str, schema.get("enum", [schema.get("const")])))
    return str(schema.get("type", "any"))


def _default(schema: Json) -> str:
    return (
        f" Default: <code>{escape(json.dumps(schema['default']))}</code>." if schema.get("default") is not None else ""
    )


def _keys(answer: Json) -> str:
    """The keys of a document."""
    schema = answer.get("content", {}).get("application/json", {}).get("schema", {})
    while "anyOf" in schema:
        schema = schema["anyOf"][0]
    keys = ", ".join(f"<code>{escape(name)}</code>" for name in schema.get("properties", {}))
    return f" Keys: {keys}." if keys else ""
