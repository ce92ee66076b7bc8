"""The command line: one JSON document, the same numbers in every view, everything decided is said."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from megatron_memory_estimator import TrainingJob, estimate
from megatron_memory_estimator.cli import main
from megatron_memory_estimator.cli.options import SECTIONS, option_names
from megatron_memory_estimator.device.verdict import VERDICTS
from megatron_memory_estimator.inputs.catalog import entries

V3 = [
    "deepseek-ai/DeepSeek-V3",
    "--tp",
    "4",
    "--pp",
    "4",
    "--ep",
    "8",
    "--num-gpus",
    "128",
    "--num-layers-in-last-pipeline-stage",
    "16",
]


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    main(list(argv))
    out, err = capsys.readouterr()
    assert err == ""
    return out


def document(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(capsys, *argv))
    return found


STAGE_KEYS = {
    "pp_rank", "chunks", "ddp_buffers", "num_parameters", "in_flight", "steady_allocated_bytes",
    "first_step_peak_allocated_bytes", "peak_allocated_bytes", "peak_event", "breakdown_bytes", "reserved_bytes", "phases", "host_bytes",
    "device_bytes",
}  # fmt: skip
LAYOUT_KEYS = {
    "world_size", "tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size",
    "context_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size", "data_parallel_size",
    "expert_data_parallel_size", "sequence_parallel",
}  # fmt: skip


def test_json_has_the_documented_keys(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "estimate", *V3, "--json")
    assert set(found) == {
        "schema", "model", "layout", "training", "stages", "peak", "routing", "verdict", "phases", "gpus", "conversion", "assumptions",
        "warnings", "uncounted", "bound",
    }  # fmt: skip
    assert found["schema"] == "megatron-memory-estimate/1"
    assert {"name", "source", "model_type", "num_parameters", "config"} <= set(found["model"])
    assert found["model"]["num_parameters"]["total"] == 671_026_404_352
    assert set(found["layout"]) >= LAYOUT_KEYS
    assert found["layout"]["data_parallel_size"] == 8
    assert found["layout"]["expert_data_parallel_size"] == 4
    assert found["training"]["num_microbatches"] == 4
    for stage in found["stages"]:
        assert set(stage) >= STAGE_KEYS
        assert sum(stage["breakdown_bytes"].values()) == stage["peak_allocated_bytes"]
        assert stage["reserved_bytes"]["low"] <= stage["reserved_bytes"]["high"]
    assert [len(s["chunks"][0]["layers"]) for s in found["stages"]] == [15, 15, 15, 16]
    assert found["peak"]["allocated_bytes"] == max(s["peak_allocated_bytes"] for s in found["stages"])
    assert {gpu["verdict"] for gpu in found["gpus"]} <= set(VERDICTS)
    assert found["warnings"] == []
    assert "1 multi-token prediction layer as in the config; --mtp-num-layers 0 turns them off" in found["assumptions"]


def test_a_hundred_and_fourteen_gib_do_not_fit_eighty(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "estimate", *V3, "--json")
    assert {gpu["verdict"] for gpu in found["gpus"] if "80GB" in gpu["name"]} == {"does not fit"}


def test_library_and_command_give_the_same_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    job = TrainingJob.from_hf("Qwen/Qwen3-8B", num_gpus=8, tensor_model_parallel_size=2)
    assert document(capsys, "estimate", "Qwen/Qwen3-8B", "--num-gpus", "8", "--tp", "2", "--json") == json.loads(
        json.dumps(estimate(job).to_dict())
    )


@pytest.mark.parametrize("at", ["peak", "steady"])
@pytest.mark.parametrize("stage", ["0", "3"])
def test_explain_adds_up(capsys: pytest.CaptureFixture[str], at: str, stage: str) -> None:
    found = document(capsys, "explain", *V3, "--json", "--stage", stage, "--at", at)
    assert sum(row["bytes"] for row in found["tensors"]) == found["allocated_bytes"]
    assert all(row["why"] and row["name"] for row in found["tensors"])
    estimated = document(capsys, "estimate", *V3, "--json")["stages"][int(stage)]
    key = "peak_allocated_bytes" if at == "peak" else "steady_allocated_bytes"
    assert found["allocated_bytes"] == estimated[key]


def test_explain_prints_shape_formula_and_local_shape(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "explain", *V3, "--stage", "1")
    line = next(line for line in out.splitlines() if "self_attention.q " in line)
    assert "[seq/cp, micro_batch_size, num_attention_heads/tp, qk_head_dim+qk_pos_emb_head_dim]" in line
    assert "4096x1x32x192" in line
    assert "saved for the backward of self_attention.core_attention" in line


def test_text_shows_a_row_per_stage_and_the_verdicts(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "estimate", *V3, "--table", "--assumptions")
    assert "256 experts of width 2048, top 8" in out
    assert "expert dp 4" in out
    assert "At the peak: " in out
    assert "Peak: stage 3" in out
    assert "H100-80GB" in out
    assert "assumed: sequence_parallel on" in out


def test_verbose_names_the_terms_of_device_memory(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "estimate", *V3, "--verbose")
    for term in ("fragmentation", "CUDA context", "NCCL"):
        assert term in out


def test_undecided_things_are_decided_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "estimate", "Qwen/Qwen3-235B-A22B", "--pp", "8", "--ep", "8", "--tp", "4", "--json")
    said = " ".join(found["assumptions"])
    assert "num_gpus not given: 64" in said
    assert "num_layers_in_first_pipeline_stage=11, num_layers_in_last_pipeline_stage=11" in said
    assert "global_batch_size not given" in said


def test_full_recompute_without_method_is_uniform_one_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "estimate", "Qwen/Qwen3-8B", "--recompute-granularity", "full", "--json")
    assert found["training"]["recompute_method"] == "uniform"
    assert found["training"]["recompute_num_layers"] == 1
    assert any("recompute_method not given: uniform" in note for note in found["assumptions"])


def test_megatron_names_are_aliases(capsys: pytest.CaptureFixture[str]) -> None:
    short = document(
        capsys, "estimate", "Qwen/Qwen3-8B", "--tp", "2", "--pp", "2", "--vpp", "2", "--num-gpus", "8", "--json"
    )
    long = document(
        capsys, "estimate", "Qwen/Qwen3-8B", "--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "2",
        "--num-virtual-stages-per-pipeline-rank", "2", "--num-gpus", "8", "--json",
    )  # fmt: skip
    assert short == long


def test_every_setting_has_an_option_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    import dataclasses

    out = run(capsys, "estimate", "--help-all")
    for _, part in SECTIONS:
        for field in dataclasses.fields(part):
            if not field.metadata.get("internal"):
                assert field.metadata["help"], field.name
                assert option_names(field)[0] in out


def test_catalogues(capsys: pytest.CaptureFixture[str]) -> None:
    models = json.loads(run(capsys, "models", "--json"))
    assert len(models) == len(entries())
    gpus = json.loads(run(capsys, "gpus", "--json"))
    assert all(gpu["source"] for gpu in gpus)
    assert "deepseek-ai/DeepSeek-V3" in run(capsys, "models")
    assert "H100-80GB" in run(capsys, "gpus")


def test_refused_models_still_have_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "models", "MiniMaxAI/MiniMax-M1-80k", "--json")
    assert found["num_parameters"]["total"] == 456_089_655_296
    assert "lightning attention" in found["refused"]


def test_a_single_estimate_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom megatron_memory_estimator.cli import main\n"
        "main(['estimate', 'Qwen/Qwen3-8B', '--json'])\n"
        "heavy = {'numpy', 'torch', 'transformers', 'megatron', 'rich', 'huggingface_hub', 'yaml'} & set(sys.modules)\n"
        "print(sorted(heavy), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"
    json.loads(done.stdout)


def test_import_of_the_package_is_light() -> None:
    code = "import sys, megatron_memory_estimator; print(any(m.startswith('megatron_memory_estimator.') for m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_several_layers_under_one_checkpoint_are_named_by_their_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "Qwen/Qwen3-0.6B",
        "--num-gpus",
        "1",
        "--micro-batch-size",
        "1",
        "--vocab-size",
        "1024",
        "--recompute-granularity",
        "full",
    ]
    main(["explain", *words, "--recompute-method", "uniform", "--recompute-num-layers", "5", "--stage", "0"])
    first = capsys.readouterr().out.splitlines()[0]
    # the last of the groups of five: 20 to 24
    assert "backward of mlp.activation of layer 24" in first and "layers.0-24." in first
