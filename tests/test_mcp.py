"""The MCP server, driven by the official client over standard input and output."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import anyio
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

from megatron_memory_estimator import TrainingJob, estimate
from megatron_memory_estimator.report.verdict import verdict_sentence

LAYOUT = {"tp": 2}
TOOLS = {
    "estimate",
    "plan",
    "advise",
    "explain",
    "compare",
    "card",
    "models",
    "gpus",
    "timeline",
    "check",
    "validate",
    "largest",
    "lengths",
    "why",
}


def started(*options: str) -> StdioServerParameters:
    """A server with these options, in the environment of the tests: of the same source tree."""
    words = ["-m", "megatron_memory_estimator", "mcp", *options]
    return StdioServerParameters(command=sys.executable, args=words, env={**os.environ})


async def conversation() -> dict[str, Any]:
    """Every tool once, and two mistakes."""
    calls: list[tuple[str, str, dict[str, Any]]] = [
        ("short", "estimate", {"model": "Qwen/Qwen3-8B", "num_gpus": 8, "settings": LAYOUT}),
        ("estimate", "estimate", {"model": "Qwen/Qwen3-8B", "num_gpus": 8, "settings": LAYOUT, "detail": "full"}),
        (
            "explain",
            "explain",
            {"model": "Qwen/Qwen3-8B", "num_gpus": 8, "settings": LAYOUT, "at": "steady", "detail": "full"},
        ),
        (
            "compare",
            "compare",
            {"models": ["Qwen/Qwen3-8B"], "layouts": [{"tp": 1}, {"tp": 4}], "num_gpus": 8, "detail": "full"},
        ),
        ("models", "models", {"model": "Qwen/Qwen3-8B"}),
        (
            "plan",
            "plan",
            {"model": "Qwen/Qwen3-8B", "num_gpus": 8, "axes": {"tp": "1,2", "cp": "1"}, "top": 2, "detail": "full"},
        ),
        (
            "advise",
            "advise",
            {"model": "Qwen/Qwen3-8B", "num_gpus": 8, "settings": {"seq_length": 32768, "tp": 2}, "detail": "full"},
        ),
        ("axis", "plan", {"model": "Qwen/Qwen3-8B", "num_gpus": 8, "axes": {"tensor": "1"}}),
        ("illegal", "estimate", {"model": "Qwen/Qwen3-8B", "num_gpus": 8, "settings": {"tp": 3}}),
        ("extra", "estimate", {"model": "Qwen/Qwen3-8B", "tp": 4}),
        ("gpus", "estimate", {"model": "Qwen/Qwen3-8B", "settings": {"num_gpus": 8}, "detail": "full"}),
        ("collision", "estimate", {"model": "Qwen/Qwen3-8B", "settings": {"cls": 8}}),
        ("twice", "estimate", {"model": "Qwen/Qwen3-8B", "settings": {"tp": 1, "tensor_model_parallel_size": 2}}),
        ("stdin", "models", {"model": "-"}),
        ("differ", "estimate", {"model": "Qwen/Qwen3-8B", "num_gpus": 16, "settings": {"world_size": 8}}),
        ("unknown", "explain", {"model": "Qwen/Qwen3-8B", "stage": 7}),
        ("choice", "explain", {"model": "Qwen/Qwen3-8B", "at": "stedy"}),
        ("top", "plan", {"model": "Qwen/Qwen3-8B", "num_gpus": 8, "top": 51}),
        ("worlds", "plan", {"model": "Qwen/Qwen3-8B"}),
    ]
    found: dict[str, Any] = {}
    async with stdio_client(started()) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        found["tools"] = (await session.list_tools()).tools
        for key, tool, arguments in calls:
            found[key] = await session.call_tool(tool, arguments)
    return found


def test_official_client() -> None:
    found = anyio.run(conversation)
    assert {tool.name for tool in found["tools"]} == TOOLS
    assert_described(found["tools"])
    assert_said_once([one for key, one in found.items() if key != "tools"])
    short = json.loads(found["short"].content[0].text)
    job = TrainingJob.from_hf("Qwen/Qwen3-8B", 8, tensor_model_parallel_size=2)
    expected = estimate(job)
    document = json.loads(found["estimate"].content[0].text)
    assert document == json.loads(json.dumps(expected.to_dict()))
    sentence, one_by_one = document["verdict"].pop("sentence"), document["verdict"].pop("sentences")
    assert " ".join(one["text"] for one in one_by_one) == sentence
    assert short["verdict"] == document["verdict"] and short["answer"].startswith(sentence)
    assert sentence == verdict_sentence(expected)
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
        "unknown": "the run has 1 stage, counted from 0",
        "extra": 'unknown argument "tp"',
        "twice": "tensor_model_parallel_size is given twice",
        "collision": 'unknown setting "cls"',
        "stdin": "standard input belongs to the protocol",
        "differ": "num_gpus=16 and world_size=8",
        "choice": "at='stedy' is not one of peak, steady. Did you mean \"steady\"?",
        "top": "top: Input should be less than or equal to 50",
        "worlds": "num_gpus is needed",
    }
    for key, word in mistakes.items():
        text = found[key].content[0].text
        assert found[key].is_error and word in text and not text.startswith("Error executing")


def assert_described(tools: list[Any]) -> None:
    """Every parameter of every tool has a description, and a list of choices where there are some."""
    parameters = {(tool.name, name): one for tool in tools for name, one in tool.input_schema["properties"].items()}
    assert [where for where, one in parameters.items() if len(one.get("description", "")) < 15] == []
    choices = {name: one["enum"] for (_, name), one in parameters.items() if "enum" in one}
    assert choices == {
        "detail": ["summary", "full"], "at": ["peak", "steady"], "objective": ["throughput", "memory", "head-room"],
        "setting": ["seq_length", "micro_batch_size", "max_tokens_per_gpu"],
    }  # fmt: skip
    assert {tool for tool, name in parameters if name == "detail"} == TOOLS
    for tool in ("estimate", "explain", "advise", "plan"):
        text = parameters[tool, "settings"]["description"]
        words = ("tensor_model_parallel_size", "tp", "recompute_granularity", "global_batch_size", "gpu", "phases")
        assert [word for word in words if word not in text] == []


def assert_said_once(results: list[Any]) -> None:
    """Each answer is one block of text without a structured copy; those that are no errors are compact JSON."""
    for one in results:
        assert len(one.content) == 1 and one.structured_content is None
        text = one.content[0].text
        assert one.is_error or text == json.dumps(json.loads(text), separators=(",", ":"))


SCRIPT = """#!/bin/bash
TP=2
torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 \\
  --max-position-embeddings 64 --micro-batch-size 1 --vocab-size 1000 --tokenizer-type NullTokenizer --bf16 \\
  --tensor-model-parallel-size $TP
"""
CONFIG = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 1000,
    "intermediate_size": 128,
}  # fmt: skip
SECRET = "hunter2 is the password"


def asked(arguments: list[str], calls: list[tuple[str, dict[str, Any]]]) -> list[Any]:
    """The answers of a server with these options."""

    async def talk() -> list[Any]:
        async with stdio_client(started(*arguments)) as (read, write), ClientSession(read, write) as session:
            await session.initialize()
            return [await session.call_tool(tool, given) for tool, given in calls]

    return anyio.run(talk)


def test_text_of_files_is_read_and_no_file_is_opened(tmp_path: Path) -> None:
    secret = tmp_path / "secret.yaml"
    secret.write_text(SECRET)
    run = "model: {name: Qwen/Qwen3-0.6B}\nparallelism: {num_gpus: 8, tp: 2}\n"
    yaml = "MODEL_ARGS:\n  --num-layers: 2\n"
    found = asked(
        [],
        [
            ("estimate", {"text": SCRIPT}),
            ("estimate", {"text": run}),
            ("estimate", {"text": json.dumps(CONFIG), "num_gpus": 2}),
            ("estimate", {"text": run.replace("Qwen/Qwen3-0.6B", str(secret))}),
            ("estimate", {"text": yaml}),
            ("estimate", {"model": str(secret)}),
            ("estimate", {"model": str(tmp_path / "missing.yaml")}),
            ("models", {"model": "/etc/passwd"}),
            ("estimate", {"model": "../" * 8 + "etc/passwd"}),
            ("estimate", {}),
            ("estimate", {"text": "x" * 3_000_000}),
            ("plan", {"model": "Qwen/Qwen3-0.6B"}),
            ("compare", {"models": ["Qwen/Qwen3-0.6B"] * 1000}),
            ("estimate", {"model": "Qwen/Qwen3-0.6B", "settings": {"tp": "x" * 100_000}}),
        ],
    )
    worlds = [json.loads(one.content[0].text)["layout"]["num_gpus"] for one in found[:3]]
    assert worlds == [8, 8, 2]
    errors = [one.content[0].text for one in found[3:]]
    assert all(one.is_error for one in found[3:]) and all(len(text) <= 600 for text in errors)
    assert errors[2] == errors[3]  # whether a path exists is not told
    assert not any("hunter2" in text or "root:" in text for text in errors)
    assert "num_gpus is needed" in errors[8] and "at most 20 cases" in errors[9] and "longer than" in errors[7]


def test_files_below_the_folder_are_opened_and_not_quoted(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (inside / "run.sh").write_text(SCRIPT)
    (inside / "config.json").write_text(json.dumps(CONFIG))
    (inside / "run.yaml").write_text("model: {name: config.json}\nparallelism: {num_gpus: 2}\n")
    (inside / "secret.yaml").write_text(SECRET)
    (inside / "away.yaml").write_text(f"model: {{name: {outside}/config.json}}\nparallelism: {{num_gpus: 2}}\n")
    (outside / "config.json").write_text(json.dumps(CONFIG))
    (inside / "link.json").symlink_to(outside / "config.json")
    os.mkfifo(inside / "pipe.yaml")
    names = [
        "run.sh",
        "config.json",
        "run.yaml",
        "secret.yaml",
        "away.yaml",
        "link.json",
        "pipe.yaml",
        "../outside/config.json",
    ]
    found = asked(["--folder", str(inside)], [("estimate", {"model": name}) for name in names])
    assert [bool(one.is_error) for one in found] == [False] * 3 + [True] * 5
    assert not any("hunter2" in one.content[0].text for one in found)


def test_a_request_ends_with_its_time_or_when_it_is_cancelled() -> None:
    slow = {
        "model": "deepseek-ai/DeepSeek-V3",
        "fewest_gpus": True,
        "settings": {},
        "axes": {"tp": "1,2,4,8", "micro_batch_size": "1-8"},
    }
    (found,) = asked(["--seconds", "1"], [("plan", slow)])
    assert found.is_error and ("stopped" in found.content[0].text or "took longer" in found.content[0].text)

    async def cancelled() -> Any:
        async with stdio_client(started()) as (read, write), ClientSession(read, write) as session:
            await session.initialize()
            with anyio.move_on_after(0.5):
                await session.call_tool("plan", slow)
            return await session.call_tool("models", {"model": "Qwen/Qwen3-0.6B"})

    assert not anyio.run(cancelled).is_error


def test_lists_in_lists_are_one_sentence() -> None:
    """500 of them were "Maximum serialization depth exceeded"."""
    from mcp.server.mcpserver.exceptions import ToolError

    from megatron_memory_estimator.mcp_server import Server

    nested: Any = 1
    for _ in range(500):
        nested = [nested]

    async def called() -> str:
        try:
            await Server("deep").call_tool("estimate", {"settings": {"env": nested}})
        except ToolError as error:
            return str(error)
        return ""

    assert anyio.run(called) == "the arguments are nested more than 60 deep"
