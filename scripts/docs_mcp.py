"""The table of docs/reference/agent_tokens.md: what the answers of the MCP server cost, before and since they are summaries."""

from __future__ import annotations

import json
from typing import Any

from docs_markdown import markdown

DEEPSEEK = {"model": "deepseek-ai/DeepSeek-V3", "num_gpus": 1024, "settings": {"tp": 2, "pp": 16, "ep": 16}}
CALLS: tuple[tuple[str, dict[str, Any], int, int], ...] = (
    ("estimate", {"model": "meta-llama/Llama-3.1-8B", "num_gpus": 8}, 12285, 8930),
    ("estimate", DEEPSEEK, 68062, 44064),
    ("compare", {"models": ["deepseek-ai/DeepSeek-V3"], "num_gpus": 128,
                 "layouts": [{"tp": 4, "pp": 4, "ep": 8}, {"tp": 8, "pp": 2, "ep": 16}]}, 56737, 31402),
    ("plan", {"model": "meta-llama/Llama-3.1-70B", "num_gpus": 64, "settings": {"gpu": "H100"}, "top": 5}, 63436, 43516),
    ("explain", DEEPSEEK, 34465, 24279),
    ("models", {}, 28492, 24835),
    ("advise", {"model": "meta-llama/Llama-3.1-70B", "num_gpus": 64, "settings": {"tp": 8, "gpu": "H100"}}, 6505, 4477),
)  # fmt: skip
"""Tools and arguments, and the characters of the text and of the structured content beside it at commit d299677 (as compact JSON)."""
TOOLS_BEFORE = 4588
"""Characters of the list of tools at that commit."""


def mcp_tokens() -> str:
    """Tokens of calls, before and now."""
    from megatron_memory_estimator.report.summary import compact, tokens
    from megatron_memory_estimator.service.answers import answered

    rows = [("list of the tools", "", f"{tokens('x' * TOOLS_BEFORE):,}", "", f"{tokens(compact(tools())):,}", "")]
    for tool, arguments, text, structured in CALLS:
        answers = [
            answered({"tool": tool, "arguments": {**arguments, "detail": detail}, "folder": None, "seconds": 600})
            for detail in ("summary", "full")
        ]
        now, full = (tokens(compact(one["answer"])) for one in answers)
        before = [f"{tokens('x' * count):,}" for count in (text, structured)]
        rows.append((f"`{tool}`", f"`{json.dumps(arguments)}`", *before, f"{now:,}", f"{full:,}"))
    return markdown(("tool", "arguments", "before: text", "and again, structured", "now", 'now, `detail="full"`'), rows)


def tools() -> list[dict[str, Any]]:
    """The tools as a client gets them."""
    import anyio

    from megatron_memory_estimator.mcp_server import server

    return [tool.model_dump(mode="json", exclude_none=True) for tool in anyio.run(server().list_tools)]


TABLES = {"mcp_tokens": mcp_tokens}
