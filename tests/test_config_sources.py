"""Where a config comes from: names that the Hub would not take, texts that are too long, keys that stand twice."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any

import pytest

from megatron_memory_estimator import ConfigError
from megatron_memory_estimator.cli import main
from megatron_memory_estimator.inputs.hf import load
from megatron_memory_estimator.inputs.hf.convert import convert
from megatron_memory_estimator.inputs.hf.load import parse

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
    "intermediate_size": 128, "vocab_size": 1000,
}  # fmt: skip


@pytest.mark.parametrize(
    "name", ["Qwen/Qwen3--8B", "a..b", "Qwen/x-", "x.git", ".x/y", "a/b/c", "[/red]x", "a\x1b[31m/b"]
)
@pytest.mark.parametrize("verb", ["estimate", "plan"])
def test_a_mistyped_hub_name_is_one_sentence(name: str, verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([verb, name, *(["--num-gpus", "8"] if verb == "plan" else [])])
    out, err = capsys.readouterr()
    assert (stop.value.code, out, err.count("\n")) == (2, "", 1)
    assert ("nearest names" in err or "no similar name in the catalogue" in err) and "\x1b" not in err


def test_a_long_standard_input_is_not_called_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        buffer = io.BytesIO(b" " * (2**24 + 1))

    monkeypatch.setattr("sys.stdin", Stdin)
    with pytest.raises(ConfigError, match="larger than 16777216 bytes"):
        load("-")


def test_a_key_that_stands_twice_among_many_is_found_soon() -> None:
    keys = ",".join(f'"k{i}":1' for i in [*range(100_000), 99_999])
    start = time.process_time()
    with pytest.raises(ConfigError, match='"k99999" appears twice'):
        parse(f"{{{keys}}}".encode(), "x")
    assert time.process_time() - start < 2


def test_a_name_with_control_characters_is_kept_on_one_line() -> None:
    loaded = convert({**LLAMA, "model_type": "a\nb\x1b[31m"}, "x\ny\x1b[0m", "t\rt")
    assert not any(
        set("\n\r\x1b") & set(text) for text in (loaded.name, loaded.source, loaded.model_type, *loaded.warnings)
    )


def test_a_mistyped_hub_name_in_a_run_description_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.yaml").write_text("model:\n  name: Qwen/Qwen3--8B\n")
    with pytest.raises(SystemExit) as stop:
        main(["estimate", str(tmp_path / "run.yaml")])
    assert stop.value.code == 2
    assert "nearest names: Qwen/Qwen3-8B" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["Qwen/Qwen3--8B", "a..b", "Qwen/x-", "x.git", ".x/y", "-x/y", "a/b/c", "x/y.git"])
def test_names_are_refused_that_the_hub_refuses(name: str) -> None:
    validators = pytest.importorskip("huggingface_hub.utils")
    with pytest.raises(validators.HFValidationError):
        validators.validate_repo_id(name)
    with pytest.raises(ConfigError, match="nor a Hub id"):
        load(name)
