"""Files that come with a request: found by the ends of their paths, nothing else is opened, and what is read is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megatron_memory_estimator import estimate
from megatron_memory_estimator.errors import ConfigError
from megatron_memory_estimator.inputs.runs.files import job_from_file
from megatron_memory_estimator.inputs.text_files import MOST_GIVEN, GivenFiles
from megatron_memory_estimator.service.choices import choices_of
from megatron_memory_estimator.service.jobs import Files
from megatron_memory_estimator.service.request import Request

MODEL = """MODEL_ARGS=(--num-layers 4 --hidden-size 1024 --ffn-hidden-size 4096 --num-attention-heads 8 --vocab-size 32000
  --max-position-embeddings 2048 --swiglu)
"""
RUN = """#!/bin/bash
SCRIPT_DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"
source "${SCRIPT_DIR}/../models/small.sh"
torchrun --nproc-per-node 4 pretrain_gpt.py ${MODEL_ARGS[@]} --seq-length 2048 --micro-batch-size 1 --global-batch-size 8 --bf16
"""
ELSEWHERE = RUN.replace("${SCRIPT_DIR}/..", "/root/megatron/scripts")
UNKNOWN = RUN.replace("${SCRIPT_DIR}/..", "$REPOSITORY")
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1000, "max_position_embeddings": 2048, "tie_word_embeddings": False,
}  # fmt: skip


def peak(request: Request) -> int:
    return max(stage.peak_allocated_bytes for stage in request.estimate.stages)


def asked(model: str | None = None, text: str | None = None, **files: str) -> Request:
    named = {name.replace("__", "/") + ".sh": content for name, content in files.items()}
    return Request({"model": model, "text": text, "files": named}, Files(None))


@pytest.mark.parametrize("run", [RUN, ELSEWHERE, UNKNOWN])
def test_a_script_that_sources_another_is_read_as_on_a_disk(run: str, tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "models").mkdir()
    (tmp_path / "runs").mkdir()
    (tmp_path / "models" / "small.sh").write_text(MODEL)
    (tmp_path / "runs" / "a.sh").write_text(RUN)
    on_disk = max(
        stage.peak_allocated_bytes
        for stage in estimate(job_from_file(str(tmp_path / "runs" / "a.sh"), None, {})).stages
    )
    assert peak(asked("runs/a.sh", runs__a=run, models__small=MODEL)) == on_disk
    assert peak(asked("a.sh", a=run, small=MODEL)) == on_disk  # both taken out of their folders
    assert peak(asked(text=run, small=MODEL)) == on_disk
    with pytest.raises(ConfigError, match=r"small\.sh"):
        peak(asked("a.sh", a=run, other=MODEL))


def test_which_files_are_read_is_said() -> None:
    said = asked("runs/a.sh", runs__a=RUN, models__small=MODEL, models__large=MODEL).job.assumptions[0]
    assert said == "runs/a.sh reads models/small.sh, and does not read models/large.sh"


def test_of_two_files_that_a_path_may_mean_none_is_taken() -> None:
    files = GivenFiles({"a/models/small.sh": "", "b/models/small.sh": "", "b/other.sh": ""})
    assert files.meant("/root/b/models/small.sh") == "b/models/small.sh"
    assert files.meant("models/small.sh") is None
    assert files.meant("small.sh") is None
    assert files.meant("c/other.sh") == "b/other.sh"
    assert files.meant("another.sh") is None


def test_the_config_of_a_model_beside_a_run_is_its_model() -> None:
    run = "model: {name: ckpt/own}\nparallelism: {num_gpus: 2}\n"
    files = {"run.yaml": run, "ckpt/own/config.json": json.dumps(CONFIG)}
    job = Request({"model": "run.yaml", "files": files}, Files(None)).job
    assert (job.model.num_layers, job.model.hidden_size, job.layout.world_size) == (2, 512, 2)
    alone = Request({"model": "ckpt/own/config.json", "files": files, "num_gpus": 1}, Files(None)).job
    assert alone.model == job.model


def test_choices_of_such_a_run_are_read_with_its_files() -> None:
    found = choices_of(asked("a.sh", a=RUN, small=MODEL), ["tp"])["tensor_model_parallel_size"]
    assert found["value"] == 1
    assert {row["value"] for row in found["values"] if row["refusal"] is None} >= {1, 2, 4}


@pytest.mark.parametrize("path", ["/etc/passwd", "../a.sh", "a/../../b.sh", "", "a\0b"])
def test_paths_elsewhere_are_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="no path below one folder"):
        GivenFiles({path: ""})


def test_what_is_no_run_among_them_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"none of the files that came with it, a\.sh; name the one"):
        peak(asked("b.sh", a=RUN))
    with pytest.raises(ConfigError, match="must be the text of a file"):
        GivenFiles({"a.sh": 1})  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match=f"at most {MOST_GIVEN} files"):
        GivenFiles({f"{number}.sh": "" for number in range(MOST_GIVEN + 1)})
    with pytest.raises(ConfigError, match="unknown setting"):
        peak(Request({"text": RUN, "settings": {"given_files": {"a": "b"}}}, Files(None)))
