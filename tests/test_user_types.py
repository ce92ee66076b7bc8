"""Typed settings: made from the settings themselves, taken by every constructor, and held by mypy in a user's script."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import os
import re
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import pytest

import megatron_memory_estimator as package
from megatron_memory_estimator import Settings, TrainingJob
from megatron_memory_estimator.inputs.setting_names import known_settings
from megatron_memory_estimator.job.constructors import Constructors
from megatron_memory_estimator.job.layout import SHORT
from megatron_memory_estimator.job.settings_types import ArgumentSettings

from .helpers import ROOT, long

HEAD = "from megatron_memory_estimator import Settings, TrainingJob\n"
SCRIPTS = {
    "right.py": """
common: Settings = {"tensor_model_parallel_size": 2, "recompute_granularity": "full"}
more: Settings = {**common, "gpu": "H200"}
job = TrainingJob.from_hf("Qwen/Qwen3-8B", 8, **more)
job = TrainingJob.from_hf("Qwen/Qwen3-8B", num_gpus=8, tp=2, pp=2, vpp=None, recompute_modules=["core_attn", "mlp"])
job = TrainingJob.from_config({"num_layers": 2}, 8, fp8="hybrid", router_imbalance="worst", moe_layer_freq=[0, 1])
job = TrainingJob.from_megatron_args("run.sh", set_variables={"NODES": "2"}, ignore_unknown=True, global_batch_size=64)
job = TrainingJob.from_bridge({}, 8, env={"NCCL_NVLS_ENABLE": 1}, bf16=True)
""",
    "typo.py": 'TrainingJob.from_hf("Qwen/Qwen3-8B", 8, tensor_model_paralel_size=2)\n',
    "wrong_type.py": 'TrainingJob.from_hf("Qwen/Qwen3-8B", 8, seq_length="8k")\n',
    "wrong_word.py": 'TrainingJob.from_hf("Qwen/Qwen3-8B", 8, recompute_granularity="all")\n',
    "wrong_gpus.py": 'TrainingJob.from_hf("Qwen/Qwen3-8B", 8.0)\n',
    "not_here.py": 'TrainingJob.from_hf("Qwen/Qwen3-8B", 8, set_variables={"NODES": "2"})\n',
}
REFUSED = {
    "typo.py": 'Unexpected keyword argument "tensor_model_paralel_size" for "from_hf" of "Constructors"; '
    'did you mean "tensor_model_parallel_size"',
    "wrong_type.py": 'Argument "seq_length" to "from_hf" of "Constructors" has incompatible type "str"; expected "int"',
    "wrong_word.py": 'Argument "recompute_granularity" to "from_hf" of "Constructors" has incompatible type',
    "wrong_gpus.py": 'Argument 2 to "from_hf" of "Constructors" has incompatible type "float"; expected "int | None"',
    "not_here.py": 'Unexpected keyword argument "set_variables" for "from_hf" of "Constructors"',
}


def test_the_typed_settings_are_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    made = importlib.import_module("settings_types")
    assert made.TARGET.read_text() == made.text(), "run `make pages`"
    assert made.Stub.TARGET.read_text() == made.Stub.text(), "run `make pages`"


@pytest.mark.parametrize(("maker", "typed", "key"), [
    ("from_hf", "recompute_g", "recompute_granularity"), ("from_megatron_args", "set_v", "set_variables"),
    ("from_bridge", "overlap_grad", "overlap_grad_reduce"), ("from_config", "vp", "vpp"),
])  # fmt: skip
def test_a_notebook_completes_settings(maker: str, typed: str, key: str) -> None:
    """jedi, which IPython and Jupyter ask, reads the stub."""
    jedi = pytest.importorskip("jedi", reason="the extra `dev` is not installed")
    line = f"TrainingJob.{maker}('x', {typed}"
    found = jedi.Script(f"from megatron_memory_estimator import TrainingJob\n{line}").complete(2, len(line))
    assert f"{key}=" in [one.name for one in found]


def test_the_stub_has_the_constructors_of_the_class() -> None:
    stub = (ROOT / "src" / "megatron_memory_estimator" / "job" / "constructors.pyi").read_text()
    makers = [name for name, one in vars(Constructors).items() if isinstance(one, classmethod)]
    assert re.findall(r"    def (from_\w+)\(", stub) == makers


def test_every_setting_is_typed() -> None:
    keys = typing.get_type_hints(Settings)
    assert {*known_settings(), *SHORT, "gpu", "strict", "env"} <= set(keys)
    for short, name in SHORT.items():
        assert keys[short] == keys[name]
    for name, part in known_settings().items():
        field = next(f for f in dataclasses.fields(part) if f.name == name)
        default = field.default if field.metadata.get("kind") != "list" else None
        assert (type(None) in typing.get_args(keys[name])) == ("None" in str(field.type)), name
        if isinstance(default, bool | int | float | str) and not field.metadata.get("choices"):
            assert type(default) in (keys[name], *typing.get_args(keys[name])), name


def test_every_key_is_a_setting_that_from_hf_knows() -> None:
    """A value that no setting takes is refused as a value, not as a name; three lists of layers are read where layers need them."""
    for name in set(typing.get_type_hints(Settings)) - {
        "moe_layer_freq",
        "linear_attention_freq",
        "csa_compress_ratios",
    }:
        nothing: dict[str, Any] = {name: object()}
        with pytest.raises(package.ConfigError) as refused:
            TrainingJob.from_hf("Qwen/Qwen3-8B", None, **nothing)
        assert "unknown setting" not in str(refused.value)


@pytest.mark.parametrize("name", ["from_hf", "from_config", "from_megatron_args", "from_bridge"])
def test_constructors_take_typed_settings(name: str) -> None:
    settings = inspect.signature(getattr(TrainingJob, name)).parameters["settings"]
    kind = ArgumentSettings if name == "from_megatron_args" else Settings
    assert settings.annotation == f"Unpack[{kind.__name__}]"
    assert "Settings" in str(TrainingJob.from_hf.__doc__)


def test_help_of_the_package_has_a_line_for_every_name() -> None:
    lines = str(package.__doc__).splitlines()
    assert {line.split("  ")[0] for line in lines if "   " in line} == set(package.__all__)
    assert set(package.__all__) <= set(dir(package))
    assert all(hasattr(package, name) for name in package.__all__)


@long  # mypy reads the whole package
def test_mypy_holds_a_users_script_to_the_settings(tmp_path: Path) -> None:
    for name, text in SCRIPTS.items():
        (tmp_path / name).write_text(HEAD + text)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary", "--hide-error-context"]
    environment = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    done = subprocess.run([*command, *SCRIPTS], capture_output=True, text=True, cwd=tmp_path, env=environment)
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert "right.py" not in done.stdout, done.stdout
    for name, sentence in REFUSED.items():
        assert [sentence in line for line in errors if line.startswith(name)] == [True], done.stdout
