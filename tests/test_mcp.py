"""The MCP server, driven by the official client over standard input and output."""

from __future__ import annotations

import json
import sys
from typing import Any

import anyio
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

from megatron_memory_estimator import TrainingJob, estimate

SERVER = StdioServerParameters(command=sys.executable, args=["-m", "megatron_memory_estimator", "mcp"])
LAYOUT = {"tp": 2}


async def conversation() -> dict[str, Any]:
    """Every tool once, and two mistakes."""
    calls: list[tuple[str, str, dict[str, Any]]] = [
        ("estimate", "estimate", {"model": "Qwen/Qwen3-8B", "num_gpus": 8, "settings": LAYOUT}),
        ("explain", "explain", {"model": "Qwen/Qwen3-8B", "num_gpus": 8, "settings": LAYOUT, "at": "steady"}),
        ("compare", "compare", {"models": ["Qwen/Qwen3-8B"], "layouts": [{"tp": 1}, {"tp": 4}], "num_gpus": 8}),
        ("models", "models", {"model": "Qwen/Qwen3-8B"}),
        ("plan", "plan", {"model": "Qwen/Qwen3-8B", "num_gpus": 8, "axes": {"tp": "1,2", "cp": "1"}, "top": 2}),
        ("advise", "advise", {"model": "Qwen/Qwen3-8B", "num_gpus": 8, "settings": {"seq_length": 32768, "tp": 2}}),
        ("axis", "plan", {"model": "Qwen/Qwen3-8B", "num_gpus": 8, "axes": {"tensor": "1"}}),
        ("illegal", "estimate", {"model": "Qwen/Qwen3-8B", "num_gpus": 8, "settings": {"tp": 3}}),
        ("extra", "estimate", {"model": "Qwen/Qwen3-8B", "tp": 4}),
        ("gpus", "estimate", {"model": "Qwen/Qwen3-8B", "settings": {"num_gpus": 8}}),
        ("collision", "estimate", {"model": "Qwen/Qwen3-8B", "settings": {"cls": 8}}),
        ("twice", "estimate", {"model": "Qwen/Qwen3-8B", "settings": {"tp": 1, "tensor_model_parallel_size": 2}}),
        ("stdin", "models", {"model": "-"}),
        ("differ", "estimate", {"model": "Qwen/Qwen3-8B", "num_gpus": 16, "settings": {"world_size": 8}}),
        ("unknown", "explain", {"model": "Qwen/Qwen3-8B", "stage": 7}),
    ]
    found: dict[str, Any] = {}
    async with stdio_client(SERVER) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        found["tools"] = {tool.name for tool in (await session.list_tools()).tools}
        for key, tool, arguments in calls:
            found[key] = await session.call_tool(tool, arguments)
    return found


def test_official_client() -> None:
    found = anyio.run(conversation)
    assert found["tools"] == {"estimate", "plan", "advise", "explain", "compare", "models"}
    job = TrainingJob.from_hf("Qwen/Qwen3-8B", 8, tensor_model_parallel_size=2)
    expected = estimate(job)
    document = json.loads(found["estimate"].content[0].text)
    assert document == json.loads(json.dumps(expected.to_dict()))
    explained = json.loads(found["explain"].content[0].text)
    assert sum(row["bytes"] for row in explained["tensors"]) == expected.stages[0].steady_allocated_bytes
    compared = json.loads(found["compare"].content[0].text)
    assert [case["label"] for case in compared["cases"]] == ["tp=1", "tp=4"] and "tp" in compared["differs"]
    assert json.loads(found["models"].content[0].text)["num_parameters"]["total"] == 8190735360
    assert json.loads(found["gpus"].content[0].text)["layout"]["world_size"] == 8
    planned = json.loads(found["plan"].content[0].text)
    assert len(planned["plans"]) == 2 and {plan["layout"]["context_parallel_size"] for plan in planned["plans"]} == {1}
    advised = json.loads(found["advise"].content[0].text)
    assert advised["purpose"] == "fit" and all(one["verdict"] == "fits" for one in advised["advice"])
    mistakes = {
        "axis": 'unknown axis "tensor"',
        "illegal": "tensor_model_parallel_size=3",
        "unknown": "stages are 0 to 0",
        "extra": 'unknown argument "tp"',
        "twice": "tensor_model_parallel_size is given twice",
        "collision": 'unknown setting "cls"',
        "stdin": "standard input belongs to the protocol",
        "differ": "num_gpus=16 and world_size=8",
    }
    for key, word in mistakes.items():
        assert found[key].is_error and word in found[key].content[0].text
