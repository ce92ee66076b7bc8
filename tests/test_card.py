"""What `estimate MODEL` says before anything is laid out: hand-worked state, and fewest GPUs that equal the planner's own search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from megatron_memory_estimator import Card, ConfigError, EstimatorError, TrainingJob, card, estimate, plan
from megatron_memory_estimator.cli import main
from megatron_memory_estimator.inputs.catalog import entries
from megatron_memory_estimator.job.hardware import find_gpu
from megatron_memory_estimator.planner.card import LEAST, POWERS
from megatron_memory_estimator.planner.planning import Planned
from megatron_memory_estimator.planner.space.features import BASIC
from megatron_memory_estimator.report.card import COMMON, card_document

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
        found = plan(job, {**LEAST, "num_gpus": numbers, "features": BASIC}, fewest_gpus=True).found
        assert (row.num_to_train, row.num_to_resume) == (found.fewest_to_train, found.fewest_gpus)


def test_experts_before_hopper_have_a_search_of_their_own() -> None:
    """Recipes set another dispatcher there."""
    job = TrainingJob.from_hf("Qwen/Qwen3-30B-A3B")
    found = {row.gpu.name: row for row in card(job).rows}
    for name in ("A100-80GB", "H100-80GB"):
        asked = replace(job, gpu=find_gpu(name))
        searched = plan(asked, {**LEAST, "num_gpus": "2,4,8,16", "features": BASIC}, fewest_gpus=True).found
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
    assert str(found).startswith("Qwen/Qwen3-8B trains on 2 H200-141GB, and can resume there with optimizer state.\n")


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
    resumes = "and resumes on 32: loading the optimizer's state takes more than training."
    assert " ".join(said.split()).startswith(
        f"{LLAMA} trains on 16 H100-80GB, {resumes} 70.6 B parameters; 1182.7 GiB of"
    )
    assert "expandable segments" in said
    assert "megatron-memory plan Llama-3.1-70B --gpu H200 --num-gpus 16\n" in said
    assert len(said.splitlines()) < 24


def test_only_what_is_judged_is_said() -> None:
    """Without loading, or without loading optimizer state, nothing is said of resuming: 2 H100 train Qwen3-8B, and 4 resume it."""
    for job in (
        TrainingJob.from_hf("Qwen/Qwen3-8B", gpu="H100", phases=["training"]),
        TrainingJob.from_hf("Qwen/Qwen3-8B", gpu="H100", load_optim=False),
    ):
        found = card(job)
        assert "resum" not in str(found) and str(found).startswith("Qwen/Qwen3-8B trains on 2 H100-80GB.\n")
        assert card_document(found)["gpus"][0]["fewest_gpus"] is None
    assert card(TrainingJob.from_hf("Qwen/Qwen3-8B", gpu="H100")).rows[0].num_to_resume == 4


def test_an_interrupt_ends_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    axes = {"tp": "8", "recompute": "none", "cp": "1", "micro_batch_size": "1"}
    stopped = plan(TrainingJob.from_hf("Qwen/Qwen3-8B", 8), axes)
    stopped.found.interrupted = True

    def interrupted(*_: object, **__: object) -> Planned:
        return stopped

    monkeypatch.setattr("megatron_memory_estimator.planner.card.plan", interrupted)
    with pytest.raises(KeyboardInterrupt):
        card(TrainingJob.from_hf("Qwen/Qwen3-8B"))


def test_kinds_without_the_recipe_are_named_and_not_searched() -> None:
    found = card(TrainingJob.from_hf("Qwen/Qwen3-8B", fp8="e4m3", fp8_recipe="mxfp8"))
    assert [row.gpu.name for row in found.rows] == ["B200-180GB", "B300-288GB"]
    assert "Without the mxfp8 recipe: A100-80GB, H100-80GB and H200-141GB." in str(found)


def test_a_card_has_no_layout_and_keeps_what_a_run_says() -> None:
    with pytest.raises(ConfigError, match="leave out tensor_model_parallel_size"):
        card(TrainingJob.from_hf("Qwen/Qwen3-8B", tp=2))
    words = ["--num-layers", "4", "--hidden-size", "1024", "--num-attention-heads", "8", "--seq-length", "1024", "--bf16",
             "--max-position-embeddings", "1024", "--micro-batch-size", "4", "--global-batch-size", "8", "--vocab-size", "999"]  # fmt: skip
    found = card(TrainingJob.from_megatron_args(words, 2, gpu="H200"))
    assert [row.gpu.name for row in found.rows] == ["H200-141GB"]
    assert found.tried["micro_batch_size"] == "4" and found.tried["recompute"] == "none"


def test_a_layout_that_is_said_holds_with_what_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """Typed with the settings that stand beside it, the layout of the last lines has the room that they say."""
    main(["estimate", "Llama-3.1-70B", "--num-gpus", "16"])
    said = " ".join(capsys.readouterr().out.split())
    assert "That assumes overlapped gradients and parameters, expandable segments, global batch 1024." in said
    job = TrainingJob.from_hf(
        LLAMA, 16, tp=8, pp=2, recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1, global_batch_size=1024,
        overlap_grad_reduce=True, overlap_param_gather=True, expandable_segments=True, phases=["training"],
    )  # fmt: skip
    room = estimate(job).verdict().head_room.low
    assert f"at least {room / 2**30:.1f} GiB left." in said


def test_gpus_without_a_layout(capsys: pytest.CaptureFixture[str]) -> None:
    """Data parallelism alone is judged, and one that needs less stands beside it."""
    main(["estimate", "Llama-3.1-70B", "--num-gpus", "16"])
    said = capsys.readouterr().out
    assert said.startswith("Cannot train on 16 H100-80GB")
    words = " ".join(said.split())
    assert "recompute full, it trains, but no layout that was tried surely resumes with optimizer state" in words
    assert "Next: megatron-memory plan Llama-3.1-70B --num-gpus 16" in words
    main(["estimate", "Llama-3.1-70B", "--num-gpus", "4", "--seq-length", "8k", "--gpu", "H100"])
    words = " ".join(capsys.readouterr().out.replace("\\\n", "").split())
    assert "no layout that was tried surely trains on 4 H100-80GB" in words
    assert words.endswith("Next: megatron-memory plan Llama-3.1-70B --seq-length 8k --gpu H100 --min-num-gpus")
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
    assert row.held is not None, f"{name}: nothing holds it"


def test_a_gpu_without_a_kernel_of_the_run_is_named_and_has_no_row(capsys: pytest.CaptureFixture[str]) -> None:
    """DeepSeek-V4 is trained with cuDNN's sparse attention, which A100 lacks: the others have rows all the same."""
    main(["estimate", "deepseek-ai/DeepSeek-V4-Flash"])
    out = capsys.readouterr().out
    assert "Without a kernel of the run: A100-80GB." in out
    assert all(f"\n{gpu} " in out for gpu in ("H100-80GB", "H200-141GB", "B200-180GB", "B300-288GB"))


def refusal_of(make: Callable[[], object]) -> str:
    """What is said where it is refused."""
    try:
        make()
    except EstimatorError as error:
        return str(error)
    return ""


def test_every_axis_that_a_card_fixes_has_words() -> None:
    assert COMMON.keys() == LEAST.keys()
