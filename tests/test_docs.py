"""The documentation is true: outputs are current, the worked example adds up, commands and links exist."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from megatron_memory_estimator import TrainingJob, estimate
from megatron_memory_estimator.cli import main
from megatron_memory_estimator.cli.group import VERBS
from megatron_memory_estimator.inputs.catalog import entries
from megatron_memory_estimator.inputs.megatron.classes import argument_class
from megatron_memory_estimator.inputs.megatron.table import arguments

from .helpers import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.fixture(scope="module")
def generator() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "scripts"))
    yield importlib.import_module("generate_docs")
    sys.path.remove(str(ROOT / "scripts"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_generated_blocks_are_current(page: Path, generator: ModuleType) -> None:
    assert generator.filled(page.read_text()) == page.read_text(), "run `make pages`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_every_verb_is_in_the_docs() -> None:
    text = "".join(page.read_text() for page in PAGES)
    for verb in VERBS:
        assert f"megatron-memory {verb}" in text


LINE = re.compile(r"^\| (?P<name>[^|]+) \| (?P<expression>[0-9+*/() ]+) \| (?P<count>\d+) \|$", re.MULTILINE)


def evaluated(expression: str) -> int:
    """An expression of whole numbers, + * / and brackets."""
    assert set(expression) <= set("0123456789+*/() ")
    value = eval(expression, {"__builtins__": {}})
    assert value == int(value)
    return int(value)


def test_the_worked_example_adds_up_tensor_by_tensor() -> None:
    text = (ROOT / "docs" / "explanation" / "worked_example.md").read_text()
    job = TrainingJob.from_hf(
        "deepseek-ai/DeepSeek-V3",
        num_gpus=128,
        tensor_model_parallel_size=4,
        pipeline_model_parallel_size=4,
        expert_model_parallel_size=8,
        num_layers_in_last_pipeline_stage=16,
        router_imbalance="balanced",
    )
    stage = estimate(job).stages[1]
    found: dict[str, int] = {}
    for row in stage.rows:
        name = re.sub(r"^layers\.[0-9-]+\.", "", row.name)
        found[name] = found.get(name, 0) + row.nbytes
    by_hand = {m["name"]: evaluated(m["expression"]) * int(m["count"]) for m in LINE.finditer(text)}
    assert by_hand == found
    assert sum(by_hand.values()) == stage.peak_allocated_bytes
    assert f"{stage.peak_allocated_bytes:,} bytes, {stage.peak_allocated_bytes / 2**30:.2f} GiB" in text


def test_every_megatron_argument_has_a_class() -> None:
    text = (ROOT / "docs" / "reference" / "megatron_arguments.md").read_text()
    by_flag, _ = arguments()
    for flag, argument in by_flag.items():
        assert f"| `--{flag.replace('_', '-')}` |" in text
        assert argument_class(argument.dest) in ("modelled", "irrelevant") or "not modelled" in argument_class(
            argument.dest
        )
    for dest in ("attention_softmax_in_fp32", "moe_aux_loss_coeff", "group_query_attention"):
        assert argument_class(dest) == "modelled"
    for dest, kind in (
        ("num_layers", "modelled"),
        ("lr", "irrelevant"),
        ("fp8_output_proj", "not modelled, refused"),
    ):
        assert argument_class(dest) == kind


DOCUMENTS = (
    "estimate Qwen/Qwen3-8B --num-gpus 8 --tp 2",
    "estimate examples/verl_grpo.sh",
    "check Qwen/Qwen3-8B --num-gpus 8",
    "explain Qwen/Qwen3-8B --num-gpus 8 --tp 2",
    "timeline Qwen/Qwen3-8B --num-gpus 8 --tp 2",
    "advise Qwen/Qwen3-8B --num-gpus 8",
    "compare Qwen/Qwen3-8B --num-gpus 8 --layout tp=1 --layout tp=2",
    "plan Qwen/Qwen3-8B --num-gpus 8 --tp 2 --cp 1 --pp 1 --micro-batch-size 1",
)
LISTS = ("stages", "plans", "advice", "cases", "moments", "tensors")


@pytest.mark.parametrize("command", DOCUMENTS, ids=lambda command: command.split()[0])
def test_every_key_of_a_document_is_on_the_page(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(SystemExit):  # check ends with its verdict
        main([*(str(ROOT / word) if word.startswith("examples/") else word for word in command.split()), "--json"])
    document = json.loads(capsys.readouterr().out)
    keys = set(document).union(*(document[name][0] for name in LISTS if document.get(name)))
    known = set(re.findall(r"\w+", (ROOT / "docs" / "reference" / "json.md").read_text()))
    assert keys - known == set()


def test_every_page_has_its_place_in_the_site() -> None:
    contents = (ROOT / "docs" / "contents.yml").read_text()
    pages = {str(page.relative_to(ROOT / "docs").with_suffix("")) for page in (ROOT / "docs").rglob("*.md")}
    listed = {name for name in pages if re.search(rf"(?:file|root): {name}$", contents, re.MULTILINE)}
    assert pages - listed == {page for page in pages if page.startswith("reference/dialects/")} - {
        "reference/dialects/index"
    }


def test_every_page_says_first_what_it_is_for() -> None:
    """A title, then a sentence: no table, list, command or sub-heading before it."""
    for page in (ROOT / "docs").rglob("*.md"):
        title, text = page.read_text().removeprefix("<!-- programs -->\n\n").split("\n\n", 1)
        assert title.startswith("# "), page
        assert re.match(r"(?:<!-- programs -->\s*)?[A-Z*`]", text), page


BY_HAND = re.compile(r"```(?:console|bash)\n(.*?)```", re.DOTALL)
NOT_HERE = re.compile(r"make |git clone |pip install |megatron-memory (?:serve|site) ?|megatron-memory \w+ MODEL ")
"""Other targets run these: the two commands of the README, installing (tests/install), the page (tests/web); MODEL stands for a model."""


def commands_by_hand() -> list[tuple[str, str, str]]:
    """Commands of blocks that are not generated: the page, the command, and what the block shows behind it."""
    found = []
    for page in PAGES:
        text = re.sub(r"<!-- (?:run|table): .*?<!-- end -->", "", page.read_text(), flags=re.DOTALL)
        for block in BY_HAND.findall(text):
            for part in re.split(r"^\$ ", block, flags=re.MULTILINE):
                command = re.match(r"(?:.*\\\n)*.*", part)
                assert command is not None
                if command[0] and not NOT_HERE.match(command[0]) and "megatron-memory" in command[0].split("#")[0]:
                    found.append((page.name, command[0], part[command.end() :].strip()))
    return found


@pytest.mark.parametrize(("page", "command", "shown"), commands_by_hand(), ids=lambda text: text[:60])
def test_every_command_that_is_shown_runs(page: str, command: str, shown: str, tmp_path: Path) -> None:
    """In a folder with the files that they name; what stands behind a command is what it says."""
    (tmp_path / "my-model").mkdir()
    for name in ("config.json", "my-model/config.json"):
        (tmp_path / name).write_text(json.dumps(entries()["Qwen/Qwen3-8B"]["config"]))
    shutil.copy(ROOT / "tests" / "launch_scripts" / "llama8b_04_defaults_arithmetic.sh", tmp_path / "run.sh")
    tool = f'megatron-memory() {{ "{sys.executable}" -m megatron_memory_estimator "$@"; }}\n'
    done = subprocess.run(
        ["bash", "-c", tool + command], capture_output=True, text=True, cwd=tmp_path, check=False, env={**os.environ, "COLUMNS": "100"}
    )  # fmt: skip
    assert done.returncode == (2 if shown.startswith("error:") else 0), done.stderr
    assert " ".join(shown.split()) in " ".join((done.stdout + done.stderr).split())
