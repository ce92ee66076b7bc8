"""GPUs that are given by their memory, and models that have the shape of one of the catalogue."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from megatron_memory_estimator import GPUS, ConfigError, LayoutError, TrainingJob, UnsupportedError, estimate
from megatron_memory_estimator.cli import main
from megatron_memory_estimator.inputs.catalog import aliases, entries
from megatron_memory_estimator.inputs.hf import hub
from megatron_memory_estimator.inputs.hf.load import UNKNOWN, load
from megatron_memory_estimator.job.hardware import CATALOGUE, GIB, MEMORY_ONLY, Gpu, find_gpu
from megatron_memory_estimator.report.page import frozen
from megatron_memory_estimator.throughput import throughput
from megatron_memory_estimator.throughput.machine import machine


@pytest.mark.parametrize(
    ("name", "shown", "gib", "known"),
    [
        ("288GB", "288GB-GPU", 288, False),
        ("MI300X", "MI300X-192GB", 191.69, False),
        ("MI300X=192GB", "MI300X-192GB", 191.69, False),
        ("MI300X=150GB", "MI300X-150GiB", 150, False),
        ("Ascend 910B=61 GiB", "ASCEND-910B-61GiB", 61, False),
        ("Some chip=61 GiB", "Some chip", 61, False),
        ("H100=64gb", "H100-64GiB", 64, True),
        ("H100 =77 GiB", "H100-77GiB", 77, True),
        ("b200=178GB", "B200-178GiB", 178, True),
    ],
)
def test_a_gpu_of_so_much_memory(name: str, shown: str, gib: float, known: bool) -> None:
    gpu = find_gpu(name)
    assert (gpu.name, gpu.memory_bytes, gpu.chip_unknown) == (shown, int(gib * GIB), not known)
    job = TrainingJob.from_hf("Qwen/Qwen3-8B", 8, tp=2, gpu=name)
    found = estimate(job)
    usual = estimate(TrainingJob.from_hf("Qwen/Qwen3-8B", 8, tp=2, gpu="b200" if "b200" in name else "H100"))
    assert found.stages[0].peak_allocated_bytes == usual.stages[0].peak_allocated_bytes
    assert any("nothing but the memory" in warning for warning in job.warnings) == (not known)
    if known:
        assert throughput(found).step > 0
    else:
        with pytest.raises(UnsupportedError, match="step times are not known"):
            throughput(found)


def test_a_comparison_of_a_gpu_without_rates_has_no_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    run = ["compare", "Qwen/Qwen3-8B", "--num-gpus", "8", "--gpu", "288GB", "--layout", "tp=1", "--layout", "tp=2"]
    main([*run, "--all"])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["step", "(s)", "-", "-"] in lines and ["MFU", "-", "-"] in lines


@pytest.mark.parametrize("command", ["estimate", "check", "advise", "compare"])
def test_every_command_keeps_to_the_memory_that_a_run_may_take(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """30 GiB less 10% of them."""
    layouts = ["--layout", "tp=2", "--layout", "tp=4"] if command == "compare" else ["--tp", "2"]
    run = [command, "Qwen/Qwen3-8B", "--num-gpus", "8", *layouts, "--max-memory", "30", "--head-room", "10%"]
    with pytest.raises(SystemExit) if command == "check" else nullcontext():
        main(run)
    assert "of 27.0 GiB" in capsys.readouterr().out


def test_the_memory_that_a_run_may_take_is_a_setting() -> None:
    job = TrainingJob.from_hf("Qwen/Qwen3-8B", 8, tp=2, max_memory=50, head_room="2")
    assert job.gpu.memory_bytes == 48 * GIB and estimate(job).verdict().word == "tight"
    for wrong in ({"max_memory": -1}, {"head_room": "some"}, {"head_room": "101%"}, {"head_room": "nan"}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            TrainingJob.from_hf("Qwen/Qwen3-8B", 8, **wrong)


def test_a_page_of_a_gpu_without_rates_says_why_it_has_no_lanes() -> None:
    held = frozen(estimate(TrainingJob.from_hf("Qwen/Qwen3-8B", 8, gpu="MI300X")))
    [lanes] = [one for one in held["documents"] if one["tool"] == "lanes"]
    assert "so step times are not known" in lanes["error"]


def test_an_unknown_gpu_says_how_to_give_it() -> None:
    with pytest.raises(ConfigError, match="give another as NAME=80GB"):
        find_gpu("MI301X")
    with pytest.raises(ConfigError, match="has no memory"):
        find_gpu("0GB")


def test_every_gpu_has_a_name_of_its_own() -> None:
    names = [word.lower() for gpu in CATALOGUE for word in {gpu.name, *gpu.aliases}]
    assert len(names) == len(set(names)) and (len(GPUS), len(MEMORY_ONLY)) == (20, 6)


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_a_gpu_has_the_peaks_of_its_architecture(gpu: Gpu) -> None:
    """fp8 from compute capability 8.9 on, fp4 from 10.0; kernel rates are those of a GPU of the catalogue that has measured ones."""
    families = {(8, 0): "ampere", (8, 6): "ampere", (8, 9): "ada", (9, 0): "hopper"}
    assert gpu.family == families.get(gpu.capability, "blackwell")
    assert (gpu.speed.fp8 > 0) == (gpu.capability >= (8, 9)) and (gpu.speed.fp4 > 0) == (gpu.capability >= (10, 0))
    assert min(gpu.speed.bf16, gpu.speed.hbm, gpu.speed.nvlink, gpu.speed.network) > 0
    like = next((one for one in GPUS if one.name == gpu.alike), gpu)
    assert gpu.alike in ("", like.name) and (not gpu.alike or (machine(like).measured and like.family == gpu.family))


def test_aliases_have_the_shape_of_their_model_or_say_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "cached", lambda name: None)
    taken = 0
    for one in aliases().values():
        assert one.id not in entries()
        if one.how == "refused":
            with pytest.raises(UnsupportedError, match=r"parameters, \d+\.\d\d TB with gradients and Adam's state"):
                load(f"anyone/{one.id}" if "/" not in one.id else one.id)
            continue
        if one.how in UNKNOWN or one.same_as not in entries():
            with pytest.raises(ConfigError, match=r"give its config\.json"):
                load(one.id)
            continue
        taken += 1
        found, same = load(one.id), load(one.same_as)
        short = [
            other
            for other in (*entries(), *aliases())
            if other.lower().endswith(f"/{one.id.partition('/')[2].lower()}")
        ]
        assert len(short) > 1 or load(one.id.partition("/")[2]).config == found.config
        sized = {name: value for name, value in found.config.items() if name not in one.changes}
        assert sized.items() <= {**same.config, **sized}.items() and found.name == one.id
        assert all(found.config[name] == same.config[name] for name in sized)
        assert any("is recalled to have" in warning for warning in found.warnings) == (one.how == "recalled")
    assert taken == 120


def test_the_config_of_the_model_itself_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "cached", lambda name: "/no/such/file" if name == "Qwen/QwQ-32B" else None)
    with pytest.raises(ConfigError, match="cannot read"):
        load("Qwen/QwQ-32B")


def test_transformer_engine_has_no_mxfp8_for_workstation_blackwell() -> None:
    """TransformerEngine 2.20.2 `pytorch/quantization.py` (_compute_mxfp8_support): not from compute capability 12.0 on."""
    with pytest.raises(
        LayoutError, match=r"10\.0 or above and below 12\.0, and .* has 12\.0; use delayed, tensorwise or blockwise"
    ):
        estimate(TrainingJob.from_hf("Qwen/Qwen3-8B", 8, gpu="RTX-PRO-6000", fp8="e4m3", fp8_recipe="mxfp8"))
    assert estimate(TrainingJob.from_hf("Qwen/Qwen3-8B", 8, gpu="RTX-PRO-6000", fp8="e4m3", fp8_recipe="tensorwise"))
