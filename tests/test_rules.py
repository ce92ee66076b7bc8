"""Every rule of legality is broken by its smallest example, alone, and kept by its legal neighbour."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from megatron_memory_estimator import LayoutError, TrainingJob
from megatron_memory_estimator.accept import accepted
from megatron_memory_estimator.cli.job_command import job_command
from megatron_memory_estimator.legality import violations
from megatron_memory_estimator.rules import Rule, table

from .helpers import ROOT

RULES = list(table().values())
WITHOUT_EXAMPLE = {
    "declared-dim": "a guard for kinds of layers that no other rule thought of (test_dims.py)",
    "no-microbatch": "every door refuses such a batch before a job is made of it",
    "dsv4-with-biases": "its models have shared experts, whose rule is broken too",
}
"""Rules that no command line breaks alone, and why."""
CALLS = re.compile(r"\"([a-z0-9]+(?:-[a-z0-9.]+)+)\"")


def judged(words: str) -> tuple[str, ...]:
    """The codes of the rules that a command line breaks."""

    def judge(job: TrainingJob, **_: Any) -> None:
        accepted(job)

    command = job_command("estimate", "", [], judge)
    try:
        command.main(shlex.split(words), standalone_mode=False)
    except LayoutError as error:
        return error.codes
    return ()


@pytest.mark.parametrize("rule", [one for one in RULES if one.breaks], ids=lambda one: one.code)
def test_its_example_breaks_a_rule_and_no_other(rule: Rule) -> None:
    assert set(judged(rule.breaks)) == {rule.code}
    assert judged(rule.neighbour) == ()


def test_every_rule_has_an_example_or_a_reason() -> None:
    assert {one.code for one in RULES if not one.breaks} == set(WITHOUT_EXAMPLE)
    assert all(one.sentence and one.source and one.part for one in RULES)


def test_every_rule_is_asked_somewhere() -> None:
    """A code that nothing breaks is a rule that is gone; one that is not in the table cannot be said."""
    package = ROOT / "src" / "megatron_memory_estimator"
    places = ("legality/*.py", "modules/*.py", "job/pipeline.py", "tape/tensor.py", "inputs/megatron/refused.py")
    files = [file for place in places for file in package.glob(place)]
    named = {code for file in files for code in CALLS.findall(file.read_text())}
    assert set(table()) <= named | {"negative"} | {"cp-a2a-heads", "cp-hierarchical-heads"}


def test_biases_of_compressed_attention() -> None:
    job = TrainingJob.from_hf("deepseek-ai/DeepSeek-V4-Flash", 8, expert_model_parallel_size=8)
    model = dataclasses.replace(job.model, add_bias_linear=True)
    codes = [one.code for one in violations(model, job.layout, job.training, 8)]
    assert codes == ["shared-experts-without-biases", "dsv4-with-biases"]


def test_a_refusal_prints_its_codes() -> None:
    changes: dict[str, Any] = {"tensor_model_parallel_size": 3, "sequence_parallel": True}
    with pytest.raises(LayoutError) as refused:
        accepted(TrainingJob.from_hf("Qwen/Qwen3-0.6B", 6, **changes))
    assert refused.value.codes[0] == "heads-over-tp"
    assert str(refused.value).startswith(f"{refused.value.reasons[0]} [heads-over-tp]; ")


def test_the_words_of_a_script_keep_the_same_rules(tmp_path: Path) -> None:
    words = shlex.split(table()["argument-manual-registration"].breaks.partition(" -- ")[2])
    script = tmp_path / "run.sh"
    script.write_text(f"torchrun --nproc-per-node 8 pretrain_gpt.py {shlex.join(words)}\n")
    codes = []
    with pytest.raises(LayoutError) as refused:
        TrainingJob.from_megatron_args(words, 8)
    codes.append(refused.value.codes)
    with pytest.raises(LayoutError) as refused:
        TrainingJob.from_file(script)
    codes.append(refused.value.codes)
    assert codes == [("argument-manual-registration",)] * 2
