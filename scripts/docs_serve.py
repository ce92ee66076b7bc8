"""The tables of docs/how-to/serve.md: the tools with their arguments and documents, and the fields of mbridge's request."""

from __future__ import annotations

import json
from typing import Any

from docs_markdown import markdown


def serve_tools() -> str:
    """A row for each tool that is served."""
    from megatron_memory_estimator.service.answers import TOOLS
    from megatron_memory_estimator.web.arguments import ARGUMENTS, LISTS
    from megatron_memory_estimator.web.documents import DOCUMENTS

    rows = []
    for tool in (name for name in ARGUMENTS if name in TOOLS):
        document = DOCUMENTS[tool]
        keys = ", ".join(f"`{name}`" for name in document.kinds)
        answer = f"{'a list, or one, of ' if document.rows else ''}{f'`{document.schema}`: ' if document.schema else ''}{keys}"
        arguments = ", ".join(f"`{name}`" for name in ARGUMENTS[tool].model_fields) or "none"
        method = "POST, GET" if tool in LISTS else "POST"
        rows.append((f"{method} `/api/v1/{tool}`", document.says, arguments, answer))
    return markdown(("path", "what", "arguments", "the document"), rows)


def serve_mbridge() -> str:
    """A row for each field of mbridge's request."""
    from megatron_memory_estimator.service.tools.mbridge import RENAMED
    from megatron_memory_estimator.web.arguments import MBridge

    def kind(schema: dict[str, Any]) -> str:
        several = [kind(one) for one in schema.get("anyOf", ())]
        return " or ".join(several) or ", ".join(schema.get("enum", ())) or schema["type"]

    fields = MBridge.model_json_schema()["properties"]
    rows = [
        (f"`{name}`", kind(one), f"`{json.dumps(one.get('default'))}`", f"`{RENAMED.get(name, name)}`")
        for name, one in fields.items()
    ]
    return markdown(("field", "kind", "default", "here"), rows)


TABLES = {"serve_tools": serve_tools, "serve_mbridge": serve_mbridge}
