"""Requests of the MCP server: answered in this process, and by the real server through the official client."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from random import Random
from typing import Any

import yaml

from megatron_memory_estimator.report.summary import MOST_TOKENS, compact, tokens
from megatron_memory_estimator.service.answers import answered

from . import seeds
from .mutate import Words, tree
from .watch import Outcome, Reader, wrong_sentences

MODEL = "Qwen/Qwen3-0.6B"
KINDS: dict[str, dict[str, tuple[type, ...]]] = {
    "estimate": {"model": (str,), "num_gpus": (int,), "settings": (dict,), "text": (str,), "detail": (str,)},
    "explain": {"model": (str,), "num_gpus": (int,), "settings": (dict,), "stage": (int,), "at": (str,), "text": (str,),
                "detail": (str,)},
    "compare": {"models": (list,), "layouts": (list,), "num_gpus": (int,), "settings": (dict,), "detail": (str,)},
    "plan": {"model": (str,), "num_gpus": (int,), "axes": (dict,), "settings": (dict,), "objective": (str,), "top": (int,),
             "fewest_gpus": (bool,), "text": (str,), "detail": (str,)},
    "advise": {"model": (str,), "num_gpus": (int,), "settings": (dict,), "text": (str,), "detail": (str,)},
    "models": {"model": (str,), "detail": (str,)},
}  # fmt: skip
"""What the server lets through to a worker, by tool and argument."""
DEFAULTS: dict[str, dict[str, Any]] = {
    "plan": {"objective": "throughput", "top": 5, "fewest_gpus": False},
    "explain": {"at": "peak"},
}
"""What the server fills in."""


def requests() -> list[Any]:
    """Requests of every tool."""
    texts = [seeds.RUNS[0], json.dumps(seeds.LLAMA), *map(yaml.safe_dump, seeds.documents()[1:4:2])]
    return [
        {"tool": "estimate", "arguments": {"model": MODEL, "num_gpus": 8, "settings": {"tp": 2, "seq_length": 64}}},
        *({"tool": "estimate", "arguments": {"text": text, "num_gpus": 8, "settings": {}}} for text in texts),
        {"tool": "explain", "arguments": {"model": MODEL, "num_gpus": 8, "settings": {"pp": 2}, "stage": 1, "at": "steady"}},
        {"tool": "compare", "arguments": {"models": [MODEL], "layouts": [{"tp": 1}, {"tp": 2, "num_gpus": 4}], "num_gpus": 8}},
        {"tool": "plan", "arguments": {"model": MODEL, "num_gpus": 8, "axes": {"tp": "1,2", "cp": "1", "pp": "1"}, "top": 2,
                                       "settings": {"global_batch_size": 8}, "objective": "memory", "fewest_gpus": False}},
        {"tool": "advise", "arguments": {"model": MODEL, "num_gpus": 8, "settings": {"tp": 2, "seq_length": 4096}}},
        {"tool": "models", "arguments": {"model": MODEL}},
        {"tool": "estimate", "arguments": {"model": MODEL, "num_gpus": 8, "settings": {"pp": 4}, "detail": "full"}},
    ]  # fmt: skip


def changed(random: Random, case: Any, other: Any, words: Words) -> Any:
    """A request with changed arguments that the server would let through."""
    found = tree(random, case["arguments"], other["arguments"], words)
    return conforming(case["tool"] if random.random() < 0.9 else other["tool"], found)


def conforming(tool: str, arguments: Any) -> dict[str, Any]:
    """A request without arguments of a wrong type, which the server refuses before a worker sees them."""
    kinds = KINDS[tool]
    kept = {
        name: value
        for name, value in (arguments if isinstance(arguments, dict) else {}).items()
        if name in kinds and (value is None or type(value) in kinds[name])
    }
    if tool == "compare":
        kept["models"] = [one for one in kept.get("models") or [] if isinstance(one, str)]
        kept["layouts"] = [one for one in kept.get("layouts") or [] if isinstance(one, dict)]
    if "axes" in kept:
        kept["axes"] = {name: value for name, value in (kept["axes"] or {}).items() if isinstance(value, str)}
    missing = {name: value for name, value in DEFAULTS.get(tool, {}).items() if kept.get(name) is None}
    return {"tool": tool, "arguments": {**kept, **missing}}


def request_words() -> Words:
    """Names of settings, of axes and of arguments."""
    found = seeds.keys()
    return Words(
        (*found.pieces, "1,2", "not:8", "2-4", MODEL, "../run.yaml", "run.sh", "/etc/passwd", "memory", "head-room"),
        (*found.names, *sorted({name for kinds in KINDS.values() for name in kinds}), "split", "recompute", "precision"),
    )  # fmt: skip


def read_request(case: Any, folder: Path) -> Outcome:
    """The answer of a worker that may open files below a folder, or none."""
    inside = str(folder) if len(json.dumps(case)) % 2 else None
    found = answered({"tool": case["tool"], "arguments": case["arguments"], "folder": inside, "seconds": 1.0})
    try:
        json.dumps(found, allow_nan=False)
    except ValueError as error:
        return Outcome(False, wrong=f"the answer is no JSON: {error}")
    if "error" in found:
        wrong = "limits of memory" if "needs more than" in found["error"] and "GiB" in found["error"] else ""
        return Outcome(False, (found["error"],), wrong)
    answer = found["answer"]
    if (case["arguments"].get("detail") or "summary") == "summary" and tokens(compact(answer)) > MOST_TOKENS:
        return Outcome(False, wrong=f"the summary has {tokens(compact(answer))} tokens")
    said = [*answer.get("assumptions", ()), *answer.get("warnings", ())] if isinstance(answer, dict) else []
    return Outcome(True, tuple(said))


def served(cases: list[Any]) -> list[str]:
    """What is wrong with the answers of the real server to these requests, through the official client."""
    import anyio
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    wrong: list[str] = []

    async def talk() -> None:
        server = StdioServerParameters(
            command=sys.executable,
            args=["-m", "megatron_memory_estimator", "mcp", "--seconds", "20"],
            env={**os.environ},
        )
        async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
            await session.initialize()
            for case in cases:
                with anyio.fail_after(60):
                    found = await session.call_tool(case["tool"], case["arguments"])
                words = "".join(getattr(part, "text", "") for part in found.content)
                if found.is_error:
                    wrong.extend(f"{one} for {json.dumps(case)[:1000]}" for one in wrong_sentences([words[:-1]]))
                    if "Traceback" in words or "limits of memory" in words:
                        wrong.append(f"{words} for {json.dumps(case)[:1000]}")
                else:
                    json.loads(words or "[]" if len(found.content) == 1 else "[]")
            alive = await session.call_tool("models", {"model": MODEL})
            wrong.extend(["the server does not answer any more"] if alive.is_error else [])

    anyio.run(talk)
    return wrong


REQUESTS = (Reader("mcp", requests, changed, read_request, request_words, seconds=5.0),)
