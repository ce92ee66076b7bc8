"""A launch that starts: words that the parser of the version knows, and the environment that Megatron-LM asserts.

Facts: Megatron-LM 0.19.2 `megatron/training/arguments.py` (validate_args). The words of 40 random plans, with the printed environment,
passed its own parse_args and validate_args.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from megatron_memory_estimator import ConfigError, TrainingJob, estimate
from megatron_memory_estimator.legality.asserted_environment import contradictions
from megatron_memory_estimator.planner.launch import environment, megatron_lm

from .test_plan import printed

LAUNCH = (
    "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 512 "
    "--max-position-embeddings 512 --micro-batch-size 1 --vocab-size 1000 --bf16"
)


@pytest.mark.parametrize(
    ("gpu", "settings", "expected"),
    [
        ("H100", {"tp": 2}, {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}),
        ("A100", {"cp": 2}, {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}),
        ("H100", {"pp": 2}, {}),
        ("B200", {"tp": 2, "cp": 2}, {}),
        ("H100", {"tp": 2, "use_megatron_fsdp": True}, {}),
        (
            "H100",
            {"fine_grained_activation_offloading": True, "offload_modules": "core_attn"},
            {"NVTE_CPU_OFFLOAD_V1": "1"},
        ),
        *(
            (
                "H100",
                {
                    "fine_grained_activation_offloading": True,
                    "offload_modules": "core_attn",
                    "transformer_engine_version": te,
                },
                {"NVTE_CPU_OFFLOAD_V1": "1"} if te != "2.9" else {},
            )
            for te in ("2.9", "2.10")
        ),
        ("H100", {"expandable_segments": True}, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
    ],
)
def test_the_environment_is_what_megatron_asserts(gpu: str, settings: dict[str, Any], expected: dict[str, str]) -> None:
    assert environment(TrainingJob.from_hf("Qwen/Qwen3-8B", 8, gpu=gpu, **settings)) == expected


def test_a_plan_prints_its_environment(capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "Qwen/Qwen3-8B",
        "--num-gpus",
        "8",
        "--tp",
        "2",
        "--cp",
        "1",
        "--pp",
        "1",
        "--recompute",
        "none",
        "--gpu",
        "H100",
    )
    found = json.loads(printed(capsys, "plan", *words, "--json"))["plans"][0]
    assert found["launch"]["environment"]["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    assert "CUDA_DEVICE_MAX_CONNECTIONS=1" in printed(capsys, "plan", *words, "--show", "1")


def test_linear_attention_has_the_name_of_the_version() -> None:
    for version, name in (("0.19", "gated_delta_net"), ("0.20", "gdn")):
        job = TrainingJob.from_hf(
            "Qwen/Qwen3-Next-80B-A3B-Instruct", 8, ep=8, mtp_num_layers=1, megatron_core_version=version
        )
        launch = megatron_lm(job)
        assert launch.arguments["experimental-attention-variant"] == name
        assert launch.beside["mtp_num_layers"] == 1  # GPTModelBuilder makes no MTP layers of this attention
        again = TrainingJob.from_megatron_args(launch.words(), 8, megatron_core_version=version)
        assert again.model.experimental_attention_variant == "gdn"


def test_a_loss_that_the_arguments_refuse_stands_beside_them() -> None:
    settings: dict[str, Any] = {"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "te"}
    launch = megatron_lm(TrainingJob.from_hf("Qwen/Qwen3-8B", 8, megatron_core_version="0.19", **settings))
    assert not any("cross-entropy" in flag for flag in launch.arguments)
    assert launch.beside == settings
    older = megatron_lm(TrainingJob.from_hf("Qwen/Qwen3-8B", 8, megatron_core_version="0.18", **settings))
    assert older.arguments["cross-entropy-fusion-impl"] == "te"


def script(folder: Path, before: str, more: str) -> TrainingJob:
    path = folder / "run.sh"
    path.write_text(f"{before}\n{LAUNCH} {more}\n")
    return TrainingJob.from_file(path, gpu="H100")


@pytest.mark.parametrize(
    ("before", "more", "warning"),
    [
        (
            "",
            "--tensor-model-parallel-size 2",
            "the script sets no CUDA_DEVICE_MAX_CONNECTIONS, and Megatron-LM stops without",
        ),
        (
            "export CUDA_DEVICE_MAX_CONNECTIONS=8",
            "--tensor-model-parallel-size 2",
            "CUDA_DEVICE_MAX_CONNECTIONS=8: Megatron-LM stops",
        ),
        ("export CUDA_DEVICE_MAX_CONNECTIONS=1", "--tensor-model-parallel-size 2", ""),
        ("export CUDA_DEVICE_MAX_CONNECTIONS=$(nproc)", "--tensor-model-parallel-size 2", ""),
        ("", "", ""),
        (
            "export CUDA_DEVICE_MAX_CONNECTIONS=1",
            "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params --ckpt-format fsdp_dtensor "
            "--no-gradient-accumulation-fusion --use-distributed-optimizer",
            "fully sharded data parallelism asserts another value",
        ),
    ],
)
def test_the_environment_of_a_script_is_checked(before: str, more: str, warning: str, tmp_path: Path) -> None:
    found = [one for one in script(tmp_path, before, more).warnings if "Megatron-LM stops" in one]
    assert [warning in one for one in found] == ([True] if warning else [])


def test_what_contradicts_an_environment_says_the_cause() -> None:
    settings: dict[str, Any] = {"fine_grained_activation_offloading": True, "offload_modules": "core_attn", "tp": 2}
    job = TrainingJob.from_hf("Qwen/Qwen3-8B", 8, gpu="H100", **settings)

    def said(job: TrainingJob, env: dict[str, str]) -> list[str]:
        return list(contradictions(job.layout, job.training, job.gpu, env, env))

    assert said(job, {}) == [
        "the script sets no CUDA_DEVICE_MAX_CONNECTIONS, and Megatron-LM stops without CUDA_DEVICE_MAX_CONNECTIONS=1 "
        "(tp or cp above 1 before Blackwell)",
        "the script sets no NVTE_CPU_OFFLOAD_V1, and Megatron-LM stops without NVTE_CPU_OFFLOAD_V1=1 (fine-grained offloading)",
    ]
    assert said(job, {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "NVTE_CPU_OFFLOAD_V1": "1"}) == []
    assert said(job, {"CUDA_DEVICE_MAX_CONNECTIONS": "8", "NVTE_CPU_OFFLOAD_V1": "0"}) == [
        "CUDA_DEVICE_MAX_CONNECTIONS=8: Megatron-LM stops, it asserts 1 (tp or cp above 1 before Blackwell)",
        "NVTE_CPU_OFFLOAD_V1=0: Megatron-LM stops, it asserts 1 (fine-grained offloading)",
    ]
    loss: dict[str, Any] = {"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "te"}
    of_bridge = TrainingJob.from_hf("Qwen/Qwen3-8B", 8, megatron_core_version="0.19", **loss)
    assert said(of_bridge, {}) == ["cross_entropy_fusion_impl=te: Megatron-LM 0.19 stops, it takes native alone"]
    sharded: list[dict[str, Any]] = [
        {"use_megatron_fsdp": True},
        {"use_torch_fsdp2": True, "use_distributed_optimizer": False},
    ]
    for given in sharded:
        shards = TrainingJob.from_hf("Qwen/Qwen3-8B", 8, **given)
        assert said(shards, {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}) == []
        assert len(said(shards, {"CUDA_DEVICE_MAX_CONNECTIONS": "1"})) == 1


def test_a_method_without_a_granularity_runs_and_does_nothing() -> None:
    plain = TrainingJob.from_hf("Qwen/Qwen3-8B", 8)
    job = TrainingJob.from_hf("Qwen/Qwen3-8B", 8, recompute_method="uniform", recompute_num_layers=1)
    assert estimate(job).stages[0].peak_allocated_bytes == estimate(plain).stages[0].peak_allocated_bytes
    assert "recompute_method has no effect without recompute_granularity=full" in job.warnings
    words = [*LAUNCH.split()[4:], "--recompute-method", "uniform"]
    assert TrainingJob.from_megatron_args(words, 1).training.recompute_granularity is None


RUN = (
    "pretrain_gpt.py --num-layers 4 --hidden-size 256 --num-attention-heads 4 --seq-length 512 --max-position-embeddings 512 "
    "--micro-batch-size 1 --global-batch-size 16 --bf16 --vocab-size 1000 --mock-data --train-iters 1 --lr 1e-4\n"
)


@pytest.mark.parametrize(
    "started",
    ["./k.sh", "bash k.sh", "srun ./k.sh", "mpirun -np 2 ./k.sh", "timeout 5h ./k.sh", "env A=1 ./k.sh", "docker run image ./k.sh",
     "torchrun --no-python ./k.sh", "sbatch k.sh", "sbatch job.pbs", "sbatch k", "bash k", "srun bash k.sh"],
)  # fmt: skip
def test_a_script_that_another_program_starts_is_followed(started: str, tmp_path: Path) -> None:
    for name in ("k.sh", "job.pbs", "k"):
        (tmp_path / name).write_text(f"#!/bin/bash\ntorchrun --nproc_per_node 8 {RUN}")
    (tmp_path / "outer.sh").write_text(f"{started}\n")
    found = TrainingJob.from_file(tmp_path / "outer.sh")
    assert (found.model.hidden_size, found.layout.world_size) == (256, 8)


def test_a_script_without_an_ending_says_by_its_first_line_what_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "k").write_text(f"#!/bin/bash\ntorchrun --nproc_per_node 8 {RUN}")
    assert TrainingJob.from_file(tmp_path / "k").model.hidden_size == 256
    assert "8 GPUs" in printed(capsys, "estimate", str(tmp_path / "k"))


def test_a_missing_script_is_named(tmp_path: Path) -> None:
    (tmp_path / "outer.sh").write_text("srun --nodes 2 ./missing.sh\n")
    with pytest.raises(ConfigError, match=r"\./missing\.sh is another script"):
        TrainingJob.from_file(tmp_path / "outer.sh")


def test_the_command_of_a_ray_job_is_what_it_runs(tmp_path: Path) -> None:
    """NVIDIA-NeMo/RL's ray.sub runs the variable COMMAND, and is often not beside the script that submits it."""
    (tmp_path / "outer.sh").write_text(
        f'COMMAND="torchrun --nproc_per_node 8 {RUN.strip()}" sbatch --nodes=1 ray.sub\n'
    )
    assert TrainingJob.from_file(tmp_path / "outer.sh").model.hidden_size == 256


@pytest.mark.parametrize(
    ("exported", "backend", "said"),
    [
        ("NVTE_FLASH_ATTN=0 NVTE_FUSED_ATTN=0", "", "--attention-backend auto expects otherwise"),
        ("NVTE_FLASH_ATTN=1 NVTE_FUSED_ATTN=0", "--attention-backend fused", "--attention-backend fused expects otherwise"),
        ("NVTE_FLASH_ATTN=0 NVTE_FUSED_ATTN=1 NVTE_UNFUSED_ATTN=0", "--attention-backend fused", ""),
        ("NVTE_FLASH_ATTN=1", "", ""),
    ],
)  # fmt: skip
def test_variables_of_attention_that_contradict_the_back_end_are_said(
    exported: str, backend: str, said: str, tmp_path: Path
) -> None:
    """Megatron-Core 0.19.2 `language_module.py`, _set_attention_backend, asserts their values."""
    (tmp_path / "k.sh").write_text(f"export {exported}\ntorchrun --nproc_per_node 8 {RUN.strip()} {backend}\n")
    found = [one for one in TrainingJob.from_file(tmp_path / "k.sh").warnings if "NVTE_" in one]
    assert len(found) == bool(said) and all(said in one for one in found)


def test_before_the_argument_these_variables_choose_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "k.sh").write_text(
        f"export NVTE_FLASH_ATTN=0 NVTE_FUSED_ATTN=0\ntorchrun --nproc_per_node 8 {RUN.strip()}\n"
    )
    (said,) = [
        one for one in TrainingJob.from_file(tmp_path / "k.sh", megatron_core_version="0.8").warnings if "NVTE_" in one
    ]
    assert "leave unfused attention" in said
