"""What `estimate MODEL` says before anything is laid out: hand-worked state, and fewest GPUs that equal the planner's own search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from megatron_memory_estimator import Card, EstimatorError, TrainingJob, card, estimate, plan
from megatron_memory_estimator.cli import main
from megatron_memory_estimator.inputs.catalog import entries
from megatron_memory_estimator.job.hardware import find_gpu
from megatron_memory_estimator.planner.card import LEAST, POWERS
from megatron_memory_estimator.report.card import card_document

LLAMA = "meta-llama/Llama-3.1-70B"
PARAMETERS = 70_553_706_496
"""https://huggingface.co/meta-llama/Llama-3.1-70B, safetensors."""


@pytest.fixture(scope="module")
def llama() -> Card:
    return card(TrainingJob.from_hf(LLAMA))


def test_state_of_llama_by_hand(llama: Card) -> None:
    """bf16 weights, fp32 gradients, and fp32 main parameters with two moments."""
    assert llama.parameters.total == llama.parameters.active == PARAMETERS
    assert llama.state_bytes == {"weights": 2 * PARAMETERS, "gradients": 4 * PARAMETERS, "optimizer": 12 * PARAMETERS}


def test_fewest_gpus_are_those_of_the_planner(llama: Card) -> None:
    """Each kind of GPU searched alone, as `plan --min-num-gpus` does, on the same layouts and numbers."""
    numbers = ",".join(map(str, POWERS[:7]))
    for row in llama.rows:
        job = TrainingJob.from_hf(LLAMA, gpu=row.gpu.name)
        found = plan(job, {**LEAST, "num_gpus": numbers}, fewest_gpus=True).found
        assert (row.num_to_train, row.num_to_resume) == (found.fewest_to_train, found.fewest_gpus)


def test_experts_before_hopper_have_a_search_of_their_own() -> None:
    """Recipes set another dispatcher there."""
    job = TrainingJob.from_hf("Qwen/Qwen3-30B-A3B")
    found = {row.gpu.name: row for row in card(job).rows}
    for name in ("A100-80GB", "H100-80GB"):
        asked = replace(job, gpu=find_gpu(name))
        searched = plan(asked, {**LEAST, "num_gpus": "2,4,8,16"}, fewest_gpus=True).found
        assert found[name].num_to_resume == searched.fewest_gpus
    held = [found[name].resume for name in ("A100-80GB", "H100-80GB")]
    assert [one.estimate.job.training.moe_token_dispatcher_type for one in held if one] == ["alltoall", "flex"]


def test_every_row_holds_what_it_says(llama: Card) -> None:
    for row in llama.rows:
        assert row.train and row.resume and row.train.num_gpus <= row.resume.num_gpus
        assert row.resume.estimate.verdict().fits and row.resume.estimate.job.gpu == row.gpu
        assert row.train.estimate.verdict().event("training").word == "fits"


def test_a_gpu_that_is_given_is_the_only_one() -> None:
    found = card(TrainingJob.from_hf("Qwen/Qwen3-8B", gpu="H200"))
    assert [row.gpu.name for row in found.rows] == ["H200-141GB"]
    assert "trains and resumes" not in str(found) and str(found).startswith("Qwen/Qwen3-8B trains on 2 H200-141GB")


def test_settings_of_a_row_are_its_layout(llama: Card) -> None:
    """They make the run again, with the peak that was found."""
    for row, said in zip(llama.rows, card_document(llama)["gpus"], strict=True):
        assert row.resume is not None
        again = TrainingJob.from_hf(LLAMA, gpu=said["gpu"], **said["settings"])
        assert estimate(again).peak_stage.peak_allocated_bytes == row.resume.estimate.peak_stage.peak_allocated_bytes


def test_estimate_of_a_model_alone_is_its_card(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    main(["estimate", "Llama-3.1-70B"])
    said = capsys.readouterr().out
    assert said.startswith(
        f"{LLAMA} trains on 16 H100-80GB; to resume with optimizer state it needs 32.\n70.6 B parameters; 1182.7 GiB"
    )
    assert "megatron-memory plan Llama-3.1-70B --gpu H200 --num-gpus 16\n" in said
    assert len(said.splitlines()) < 24


def test_gpus_without_a_layout(capsys: pytest.CaptureFixture[str]) -> None:
    """Data parallelism alone is judged, and one that needs less stands beside it."""
    main(["estimate", "Llama-3.1-70B", "--num-gpus", "16"])
    said = capsys.readouterr().out
    assert said.startswith("Cannot train on 16 H100-80GB")
    assert (
        "laid out as tp 8, pp 2, recompute full it trains, but may not resume with optimizer state, at least 0.6 GiB left"
        in said
    )
    assert said.splitlines()[-1].startswith("Next: megatron-memory plan Llama-3.1-70B --num-gpus 16 --phases training")
    main(["estimate", "Llama-3.1-70B", "--num-gpus", "4"])
    assert "no other that was tried trains on 4 H100-80GB" in capsys.readouterr().out
    for given in (["--tp", "8"], ["--json"]):
        main(["estimate", "Llama-3.1-70B", "--num-gpus", "16", *given])
        assert "No layout was given" not in capsys.readouterr().out


@pytest.mark.parametrize("name", [*entries()][::4])
def test_a_bundled_model_has_a_card(name: str) -> None:
    """Every fourth one: what is refused on one GPU is refused by the card, in the same words; the others are held by some number."""
    refused = refusal_of(lambda: estimate(TrainingJob.from_hf(name)))
    if refused:
        assert refusal_of(lambda: card(TrainingJob.from_hf(name, gpu="B300"))) == refused
        return
    (row,) = card(TrainingJob.from_hf(name, gpu="B300")).rows
    assert row.held is not None and (row.resume is None or row.train is not None), f"{name}: nothing holds it"


def refusal_of(make: Callable[[], object]) -> str:
    """What is said where it is refused."""
    try:
        make()
    except EstimatorError as error:
        return str(error)
    return ""
