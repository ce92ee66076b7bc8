"""Lists of models and GPUs: filtered by a word, one line each, the same numbers in every format; options that are near."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest

from megatron_memory_estimator.cli import main
from megatron_memory_estimator.inputs.catalog import entries
from megatron_memory_estimator.inputs.hf import coverage
from megatron_memory_estimator.inputs.hf.families import FAMILIES, REFUSED
from megatron_memory_estimator.job.hardware import CATALOGUE


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    main(list(words))
    return capsys.readouterr().out


def test_a_word_chooses_by_name_or_type(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(printed(capsys, "models", "nemotron", "--json"))
    assert [one["name"] for one in found] == [
        name for name, entry in entries().items() if "nemotron" in f"{name} {entry['config']['model_type']}".lower()
    ]
    assert len(found) == 6
    assert [one["name"] for one in json.loads(printed(capsys, "models", "V4-Flash", "--json"))] == [
        "deepseek-ai/DeepSeek-V4-Flash"
    ]


@pytest.mark.parametrize("name", ["Qwen/Qwen3-8B", "qwen3-8b"])
def test_a_whole_name_shows_one_model(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(printed(capsys, "models", name, "--json"))["num_parameters"]["total"] == 8_190_735_360
    assert printed(capsys, "models", name).splitlines()[1:] == [
        "  parameters    8,190,735,360",
        "  active        8,190,735,360",
        "  of MTP layers 0",
        "  memory        modelled",
    ]


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
@pytest.mark.parametrize("word", [None, "gemma"])
def test_every_model_is_a_line_and_no_number_is_cut(
    width: int, word: str | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    words = [word] if word else []
    models = json.loads(printed(capsys, "models", *words, "--json"))
    lines = printed(capsys, "models", *words).splitlines()
    assert max(map(len, lines)) <= width
    rows = [line for line in lines if re.search(" (modelled|parameters only|refused)", line)]
    for model, row in zip(models, rows, strict=True):
        count = model["num_parameters"]
        assert (f"{count['total'] / 1e9:.3f}" if count else " -") in row
        assert (" modelled" not in row) == bool(model["refused"])
        assert width < 80 or row.split()[0] == model["name"]


def test_models_as_csv_are_plain_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    models = json.loads(printed(capsys, "models", "--json"))
    rows = list(csv.DictReader(io.StringIO(printed(capsys, "models", "--format", "csv"))))
    for model, row in zip(models, rows, strict=True):
        counts = model["num_parameters"] or {}
        assert row["name"] == model["name"]
        assert all(int(row[f"num_parameters_{kind}"]) == number for kind, number in counts.items())
        assert row["supported"] == str(not model["refused"])
        assert row["memory"] == (
            "modelled" if not model["refused"] else "parameters only" if model["num_parameters"] else "refused"
        )
        assert (row["reason"] in model["refused"]) if model["refused"] else row["reason"] == ""
    assert len(printed(capsys, "models", "--format", "markdown").splitlines()) == 2 + len(models)


def test_gpus_in_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(csv.DictReader(io.StringIO(printed(capsys, "gpus", "--format", "csv"))))
    assert [(row["name"], int(row["memory_bytes"])) for row in rows] == [
        (gpu.name, gpu.memory_bytes) for gpu in CATALOGUE
    ]
    assert printed(capsys, "gpus", "--format", "json") == printed(capsys, "gpus", "--json")
    assert len(printed(capsys, "gpus", "--format", "markdown").splitlines()) == 2 + len(CATALOGUE)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["models", "--json", "--format", "csv"], "--json and --format csv exclude each other; give one"),
        (["gpus", "--json", "--format", "markdown"], "--json and --format markdown exclude each other; give one"),
        (["estimate", "x", "--seq-leng", "8"], 'No such option "--seq-leng". Did you mean --seq-length?'),
        (["estimate", "x", "--tp-size", "8"], 'No such option "--tp-size". Did you mean --tp?'),
        (
            ["estimate", "x", "--recomp", "full"],
            'No such option "--recomp". Did you mean --recompute-granularity, --recompute-method, --recompute-num-layers or '
            "--recompute-modules?",
        ),
        (["estimate", "x", "--features", "safe"], 'No such option "--features" of estimate; plan has it'),
        (["gpus", "--num-gpus", "8"], 'No such option "--num-gpus" of gpus; estimate, check, plan and others have it'),
        (["estimate", "x", "--hiden-size", "8"], 'No such option "--hiden-size". Did you mean --hidden-size, '),
        (
            ["estimate", "x", "--seq-length", "8.5k"],
            "Invalid value for '--seq-length': '8.5k' is not a number of tokens such as 8192 or 8k",
        ),
    ],
    ids=str,
)
def test_one_sentence(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    out, err = capsys.readouterr()
    assert (ended.value.code, out, err.count("\n")) == (2, "", 1)
    assert sentence in err


@pytest.mark.parametrize(("text", "tokens"), [("8k", 8192), ("128K", 131072), ("4096", 4096)])
def test_tokens_by_the_k(text: str, tokens: int, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(printed(capsys, "estimate", "Qwen/Qwen3-0.6B", "--seq-length", text, "--json"))
    assert found["training"]["seq_length"] == tokens


BRIDGES = """
bailing/bailing_moe2 deepseek/deepseek_v2 deepseek/deepseek_v3 deepseek/deepseek_v4 ernie/ernie_45 ernie_vl/ernie45_vl exaone/exaone4
exaone/exaone45 exaone/exaone_moe falcon_h1/falconh1 gemma/gemma gemma/gemma2 gemma/gemma3 gemma/gemma4 gemma_vl/gemma3_vl
gemma_vl/gemma4_vl glm/glm45 glm/glm47_flash glm_moe_dsa/glm5 glm_vl/glm_45v gpt_oss/gpt_oss hy_v3/hy_v3 kimi/kimi kimi/kimi_k3
kimi_vl/kimi_k25_vl llama/llama llama_nemotron/llama_nemotron mimo/mimo mimo_v2_flash/mimo_v2_flash minimax_m2/minimax_m2
minimax_m3/minimax_m3 ministral3/ministral3 mistral/mistral nemotron/nemotron nemotron_omni/nemotron_omni nemotron_vl/nemotron_vl
nemotronh/nemotron_h olmoe/olmoe qwen/qwen2 qwen/qwen3 qwen/qwen35 qwen/qwen3_moe qwen/qwen3_next qwen3_asr/qwen3_asr
qwen_audio/qwen2_audio qwen_omni/qwen25_omni qwen_omni/qwen3_omni qwen_vl/qwen25_vl qwen_vl/qwen35_vl qwen_vl/qwen3_vl sarvam/sarvam_mla
sarvam/sarvam_moe stepfun/step35 stepfun/step37
"""
"""Every bridge of a decoder (NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/*/*_bridge.py`, 0.6.2 and 067f987d)."""


def test_every_bridge_is_listed_and_estimated_or_says_why_not() -> None:
    assert {bridge.file.removesuffix(" (MoE)") for bridge in coverage.BRIDGES} == set(BRIDGES.split())
    found = {bridge: coverage.status(bridge) for bridge in coverage.BRIDGES}
    assert all((one.memory == "estimated") != bool(one.reason) for one in found.values())
    assert sum(one.memory == "estimated" for one in found.values()) >= 50


def test_an_example_is_of_its_bridge() -> None:
    """With a kind it is read as that family; without one it is what the catalogue has."""
    for bridge in coverage.BRIDGES:
        assert bridge.example in entries()
        assert not bridge.kind or bridge.kind in {*FAMILIES, *REFUSED}
