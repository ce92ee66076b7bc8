"""Library versions: what containers have by their names, and what versions that nobody gives would move."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from megatron_memory_estimator import TrainingJob, estimate
from megatron_memory_estimator.inputs.containers import contained, image_in
from megatron_memory_estimator.job.hardware import CORE, TE, OpenVersion, before
from megatron_memory_estimator.versions import CHANGES, assumptions, changes_of, setting_notes, version_notes

from .helpers import ROOT
from .test_plan import printed

SOURCES = ROOT / "src" / "megatron_memory_estimator"
COMPARED = re.compile(
    r"\.(te|mcore) *(?:>=|<|==) *(\(+\d+, \d+\)|[A-Z][A-Z_0-9]*)|([A-Z][A-Z_0-9]*) *<= *\w+(?:\.\w+)*\.mcore"
)
PAIR = re.compile(r"\((\d+), (\d+)\)")


def compared() -> set[tuple[str, tuple[int, int]]]:
    """Every version that a rule about bytes asks for, as it stands in the tree."""
    found = set()
    texts = {path: path.read_text() for path in SOURCES.rglob("*.py") if path.parent.name not in ("legality", "inputs")}
    constants = {name: (int(major), int(minor)) for text in texts.values()
                 for name, major, minor in re.findall(r"^([A-Z][A-Z_0-9]*) = \((\d+), (\d+)\)$", text, re.MULTILINE)}  # fmt: skip
    for text in texts.values():
        for library, bound, other in COMPARED.findall(text):
            setting = TE if library == "te" else CORE
            pairs = [(int(a), int(b)) for a, b in PAIR.findall(bound.strip("(") and f"({bound.strip('()')})")]
            found |= {(setting, pair) for pair in pairs or [constants[bound or other]]}
    return found


def test_every_version_that_a_rule_asks_for_is_in_the_table() -> None:
    known = {(change.setting, change.since) for change in CHANGES}
    assert len(compared()) > 10
    assert compared() <= known, f"versions.py lacks {compared() - known}"


@pytest.mark.parametrize(("image", "te", "core"), [
    ("nvcr.io/nvidia/pytorch:25.09-py3", "2.11", None),  # at most what 26.01 has
    ("nvcr.io#nvidia/pytorch:26.01-py3", "2.11", None),  # MooreThreads/SimuMax docs/b200/b200_real_repro_guide.md
    ("nvcr.io/nvidia/nemo:25.11", "2.9", "0.15"),  # PyPI megatron-core 0.15.0: transformer-engine>=2.9.0a0,<2.10
    ("/images/nvidia+nemo+25.11.sqsh", "2.9", "0.15"), ("nvcr.io/nvidia/nemo:26.02", "2.11", "0.16"),
    ("verlai/verl:app-verl0.5-vllm0.10.0-mcore0.13.0-te2.2", "2.2", "0.13"),
    ("my/image:latest", None, None), ("nvcr.io/nvidia/tritonserver:25.09-py3", None, None),
])  # fmt: skip
def test_versions_of_a_container(image: str, te: str | None, core: str | None) -> None:
    found = contained(image)
    assert (found.versions.get(TE), found.versions.get(CORE)) == (te, core)
    assert image in found.said


def test_a_tag_between_two_known_ones_may_have_what_lies_between_theirs() -> None:
    assert contained("nvcr.io/nvidia/nemo:26.01").open[-1] == OpenVersion(CORE, (0, 15), (0, 16))
    assert "2.11 or older" in contained("nvcr.io/nvidia/pytorch:25.11-py3").said
    assert "2.10 to 2.11" in contained("nvcr.io/nvidia/nemo:26.02").said


@pytest.mark.parametrize(("words", "image"), [
    (["srun", "-l", "--container-image", "nvcr.io/nvidia/nemo:25.09", "bash"], "nvcr.io/nvidia/nemo:25.09"),
    (["srun", "--container-image=nvcr.io#nvidia/pytorch:25.09-py3"], "nvcr.io#nvidia/pytorch:25.09-py3"),
    (["docker", "run", "--gpus", "all", "nvcr.io/nvidia/pytorch:25.05-py3", "torchrun"], "nvcr.io/nvidia/pytorch:25.05-py3"),
    (["srun", "--container-image=/images/mcore.sqsh"], ""), (["torchrun", "--nproc_per_node", "8"], ""),
])  # fmt: skip
def test_the_image_of_a_launch(words: list[str], image: str) -> None:
    assert image_in(words) == image


TRAINING = (
    "pretrain_gpt.py --num-layers 8 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 "
    "--micro-batch-size 1 --global-batch-size 8 --bf16 --vocab-size 32000 --tokenizer-type NullTokenizer"
)


@pytest.mark.parametrize("script", [
    f"#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --container-image nvcr.io/nvidia/nemo:25.07\nsrun --ntasks=8 python {TRAINING}\n",
    f"#!/bin/bash\nIMAGE=nvcr.io/nvidia/nemo:25.07\nsrun --ntasks=8 --container-image=$IMAGE python {TRAINING}\n",
    f"#!/bin/bash\ndocker run --rm --gpus all nvcr.io/nvidia/nemo:25.07 torchrun --nproc_per_node 8 {TRAINING}\n",
])  # fmt: skip
def test_a_launch_script_says_its_container(script: str, tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(script)
    job = TrainingJob.from_megatron_args(str(path))
    assert job.env.container == "nvcr.io/nvidia/nemo:25.07" and job.layout.world_size == 8
    assert job.training.megatron_core_version == "0.15"
    assert job.training.te == (2, 9)
    mine = TrainingJob.from_megatron_args(
        str(path), megatron_core_version="0.18", container="nvcr.io/nvidia/nemo:26.06"
    )
    assert mine.training.megatron_core_version == "0.18"


def test_versions_that_move_the_peak_are_named_with_what_they_move() -> None:
    """Qwen3-0.6B with TransformerEngine's fused cross entropy: 2.18 allocates the gradient of the logits, older ones write it into them,
    newer ones into a copy that the forward makes."""
    settings: dict[str, Any] = {
        "cross_entropy_loss_fusion": True,
        "cross_entropy_fusion_impl": "te",
        "micro_batch_size": 8,
        "phases": ("training",),
    }
    job = TrainingJob.from_hf("Qwen/Qwen3-0.6B", 1, **settings)
    found = estimate(job)
    note = next(note for note in assumptions(found) if note.startswith(TE))
    for older, words in (("2.18", "with TransformerEngine 2.18: "), ("2.17", "with TransformerEngine before 2.18: ")):
        then = estimate(
            dataclasses.replace(job, training=dataclasses.replace(job.training, transformer_engine_version=older))
        )
        moved = then.peak_stage.peak_allocated_bytes - found.peak_stage.peak_allocated_bytes
        assert abs(moved) > 0.01 * found.peak_stage.peak_allocated_bytes
        assert f"{words}{moved / 2**30:+.1f} GiB at the peak" in note
    given = TrainingJob.from_hf(
        "Qwen/Qwen3-0.6B", 1, transformer_engine_version="2.20", megatron_core_version="0.20", **settings
    )
    assert given.open_versions == () and version_notes(estimate(given)) == ()


def test_a_change_is_said_only_of_runs_that_it_moves() -> None:
    job = TrainingJob.from_hf("Qwen/Qwen3-0.6B", 1, gradient_accumulation_fusion=False)
    one = next(one for one in job.open_versions if one.setting == TE)
    assert (2, 3) not in {change.since for change in changes_of(job, one, loading=False)}
    assert before((2, 3)) == (2, 2) and before((2, 0)) == (1, 99)


def test_notes_of_versions_are_in_every_report(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("estimate", "meta-llama/Meta-Llama-3-8B", "--num-gpus", "8")
    document = json.loads(printed(capsys, *words, "--json"))
    assert any(note.startswith("transformer_engine_version not given") for note in document["assumptions"])
    assert "before 2.3" in " ".join(printed(capsys, *words).split())
    held = json.loads(printed(capsys, *words, "--container", "nvcr.io/nvidia/pytorch:26.01-py3", "--json"))
    assert held["training"]["transformer_engine_version"] == "2.11"
    assert not any(note.startswith("transformer_engine_version") for note in held["assumptions"])


def test_what_megatron_bridge_fuses_otherwise_is_said_with_its_bytes() -> None:
    """Qwen3-8B, tp 2, 4,096 tokens: without the fused activation two tensors [4096, 6144] in bf16 stay in each of 36 layers. The
    native loss (`models/gpt_provider.py`) makes a second copy in fp32 of the logits [4096, 75968]."""
    found = estimate(TrainingJob.from_hf("Qwen/Qwen3-8B", 8, tp=2))
    activation, loss = setting_notes(found)
    assert 36 * 2 * 4096 * 6144 * 2 == 3.375 * 2**30
    assert activation == (
        "bias_activation_fusion not given: on, the default of pretrain_gpt.py; off, as Megatron-Bridge builds qwen3, would be +3.4 GiB "
        "at the peak (--no-bias-activation-fusion)"
    )
    assert activation.short == "fused activation (Megatron-Bridge does otherwise: +3.4 GiB)"
    assert loss.startswith("cross_entropy_loss_fusion not given: off, the default of pretrain_gpt.py; native, ")
    assert f"{4096 * 75968 * 4 / 2**30:+.1f} GiB at the peak" in loss
    assert {activation, loss} <= set(assumptions(found))


def test_a_fusion_that_is_given_or_the_same_is_not_said() -> None:
    given: dict[str, Any] = {"tp": 2, "bias_activation_fusion": True, "cross_entropy_loss_fusion": False}
    assert setting_notes(estimate(TrainingJob.from_hf("Qwen/Qwen3-8B", 8, **given))) == ()
    names = [one.name for one in TrainingJob.from_hf("meta-llama/Meta-Llama-3-8B", 8).open_settings]
    assert names == ["cross_entropy_loss_fusion"], "its provider fuses the activation"
    words = "--num-layers 2 --hidden-size 1024 --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024"
    more = "--micro-batch-size 1 --global-batch-size 8 --vocab-size 32000 --tokenizer-type NullTokenizer"
    assert not TrainingJob.from_megatron_args(f"{words} {more}".split(), 8).open_settings
