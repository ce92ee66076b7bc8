"""Every number and verdict of two trees, case by case: what a change of the code alone must leave as it is.

python scripts/compare_answers.py draw CASES [FILE_OR_FOLDER ...]   random jobs, catalogued models, plans, and runs' files
python scripts/compare_answers.py answer CASES ANSWERS              with the package that this Python imports
python scripts/compare_answers.py compare BEFORE AFTER

Answers hold the numbers of the document (and its words verdict, phase and decided by), or the kind of refusal; sentences are left out.
A JSON-lines file with `args` and `world_size` in each row gives argument lists.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from megatron_memory_estimator import EstimatorError, TrainingJob, estimate, plan

WORDS = ("verdict", "phase", "decider", "word", "recompute", "precision")
"""Names of a document whose values are compared although they are words."""
RANDOM_JOBS, MIXED_JOBS = 2000, 1500
SIZES = (
    (8, {}),
    (64, {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2}),
    (256, {"tensor_model_parallel_size": 8}),
)
PLANNED = (
    ("Qwen/Qwen3-8B", 8, "H100"),
    ("meta-llama/Llama-3.1-70B", 64, "H100"),
    ("Qwen/Qwen3-30B-A3B", 16, "GB200"),
    ("deepseek-ai/DeepSeek-V3", 256, "GB300"),
    ("openai/gpt-oss-20b", 8, "H100"),
    ("Qwen/Qwen3-Next-80B-A3B-Instruct", 64, "H200"),
    ("mistralai/Mixtral-8x7B-v0.1", 32, "A100-80GB"),
    ("google/gemma-3-27b-it", 32, "B200"),
    ("deepseek-ai/DeepSeek-V2-Lite", 16, "H100"),
    ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 16, "H100"),
    ("moonshotai/Moonlight-16B-A3B", 16, "H100"),
    ("zai-org/GLM-4.5-Air", 64, "B200"),
)


def draw(places: list[Path]) -> Iterator[dict[str, Any]]:
    """Cases, each a dict with what its door takes."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from tests.random_jobs import random_job  # not of the package

    from megatron_memory_estimator.inputs.catalog import entries

    drawn = [random_job(Random(seed)) for seed in range(RANDOM_JOBS)]
    for one in drawn:
        yield {"model": one.name, "num_gpus": one.num_gpus, "settings": one.settings}
    for seed in range(MIXED_JOBS):
        dice = Random(f"mixed {seed}")
        one, other = dice.sample(drawn, 2)
        taken = dice.sample(sorted(other.settings), min(2, len(other.settings)))
        yield {
            "model": one.name,
            "num_gpus": one.num_gpus,
            "settings": one.settings | {name: other.settings[name] for name in taken},
        }
    for name in entries():
        for gpus, settings in SIZES:
            yield {"model": name, "num_gpus": gpus, "settings": settings}
    for name, gpus, gpu in PLANNED:
        yield {"plan": name, "num_gpus": gpus, "settings": {"gpu": gpu}}
    for place in places:
        if place.suffix == ".jsonl":
            for line in place.read_text().splitlines():
                row = json.loads(line)
                yield {"args": row["args"], "num_gpus": row["world_size"], "settings": {"gpu": row.get("gpu", "H100")}}
            continue
        for file in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if file.suffix in (".sh", ".yaml", ".yml", ".py", ".json", ".toml"):
                for gpus in (None, 64):
                    yield {"file": str(file), "num_gpus": gpus, "settings": {}}


def answer(case: dict[str, Any]) -> dict[str, Any]:
    """The numbers that a case is answered with."""
    settings = {name: tuple(value) if isinstance(value, list) else value for name, value in case["settings"].items()}
    gpus = case["num_gpus"]
    try:
        if "plan" in case:
            found = plan(TrainingJob.from_hf(case["plan"], gpus, **settings)).found
            rows = [
                (one.job.layout.degrees, one.split, one.recompute, one.precision, one.tokens_per_s_gpu, one.needed)
                for one in found.plans
            ]
            return _answer([found.legal, rows], str(rows[:1]))
        if "args" in case:
            job = TrainingJob.from_megatron_args(case["args"], gpus, **settings)
        elif "file" in case:
            job = TrainingJob.from_file(case["file"], gpus, **settings)
        elif case["model"]:
            job = TrainingJob.from_hf(case["model"], gpus, **settings)
        else:
            job = TrainingJob.from_config(case["settings"], gpus)
        found = estimate(job)
    except EstimatorError as error:
        return {"refused": type(error).__name__, "why": str(error)[:200]}
    document = found.to_dict()
    return _answer(
        sorted(_numbers(document, ""), key=str),
        f"{found.verdict().word} {[stage.peak_allocated_bytes for stage in found.stages]}",
    )


def _answer(figures: Any, shown: str) -> dict[str, Any]:
    return {"figures": hashlib.sha256(repr(figures).encode()).hexdigest()[:16], "shown": shown[:300]}


def _numbers(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if name != "version":
                yield from _numbers(inner, f"{path}.{name}")
    elif isinstance(value, (list, tuple)):
        for at, inner in enumerate(value):
            yield from _numbers(inner, f"{path}.{at}")
    elif value is not None and (not isinstance(value, str) or path.rsplit(".", 1)[-1] in WORDS):
        # a new setting is None
        yield path, value


def compare(before: list[dict[str, Any]], after: list[dict[str, Any]], cases: list[dict[str, Any]]) -> int:
    """Print what differs; how many cases do."""
    counts: Counter[str] = Counter()
    differ = 0
    for case, old, new in zip(cases, before, after, strict=True):
        counts["refused" if "refused" in old else "answered"] += 1
        same = old.get("refused") == new.get("refused") if "refused" in old and "refused" in new else old == new
        if not same:
            differ += 1
            print(json.dumps(case)[:300], json.dumps(old)[:400], json.dumps(new)[:400], sep="\n  ")
    print(f"{len(before):,} cases ({counts['answered']:,} answered, {counts['refused']:,} refused): {differ:,} differ")
    return differ


def _lines(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def main(words: list[str]) -> int:
    verb, *paths = words
    if verb == "draw":
        Path(paths[0]).write_text("\n".join(json.dumps(one) for one in draw([Path(one) for one in paths[1:]])) + "\n")
    elif verb == "answer":
        with Path(paths[1]).open("w") as out:
            for case in _lines(paths[0]):
                out.write(json.dumps(answer(case)) + "\n")
    else:
        return int(bool(compare(_lines(paths[0]), _lines(paths[1]), _lines(paths[2]))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
