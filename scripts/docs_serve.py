"""The table of docs/reference/server.md of the fields of mbridge's request."""

from __future__ import annotations

import json
from typing import Any

from docs_markdown import markdown


def serve_mbridge() -> str:
    """A row for each field of mbridge's request."""
    from megatron_memory_estimator.service.schema import MBridge
    from megatron_memory_estimator.service.tools import RENAMED

    def kind(schema: dict[str, Any]) -> str:
        several = [kind(one) for one in schema.get("anyOf", ())]
        return " or ".join(several) or ", ".join(schema.get("enum", ())) or schema["type"]

    fields = MBridge.model_json_schema()["properties"]
    rows = [
        (f"`{name}`", kind(one), f"`{json.dumps(one.get('default'))}`", f"`{RENAMED.get(name, name)}`")
        for name, one in fields.items()
    ]
    return markdown(("field", "kind", "default", "here"), rows)


TABLES = {"serve_mbridge": serve_mbridge}
