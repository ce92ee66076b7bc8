"""Help: one screen with examples that run, every option under one topic, and what the shell completes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import click
import pytest
from click.shell_completion import BashComplete, CompletionItem, FishComplete, ShellComplete, ZshComplete

from megatron_memory_estimator.cli import main
from megatron_memory_estimator.cli.examples import EXAMPLES
from megatron_memory_estimator.cli.group import VERBS, command
from megatron_memory_estimator.cli.options import SECTIONS, special_options
from megatron_memory_estimator.cli.verb import OFTEN, RARE, LongVerb
from megatron_memory_estimator.inputs.catalog import entries
from megatron_memory_estimator.inputs.topics import TOPICS
from megatron_memory_estimator.web.static import Release, archived

from .helpers import FACTS

SCREEN = (80, 50)
LINES = "[Rank 0] (after 2 iterations) memory (MB) | allocated: 100 | max allocated: 120 | reserved: 1\n"


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What a command prints that ends by itself."""
    with contextlib.suppress(SystemExit):
        main(list(words))
    out, err = capsys.readouterr()
    assert "error: " not in err
    return out


def options_of(verb: str) -> list[click.Option]:
    """Every option of a verb."""
    group = click.Context(command, info_name="megatron-memory", help_option_names=["-h", "--help"])
    found = command.get_command(group, verb)
    assert found is not None
    params = found.get_params(click.Context(found, parent=group, info_name=verb))
    return [param for param in params if isinstance(param, click.Option)]


LONG = [verb for verb in VERBS if isinstance(command.get_command(click.Context(command), verb), LongVerb)]


def test_every_option_of_a_model_and_a_layout_has_one_topic() -> None:
    fields = {f.name for _, part in SECTIONS for f in dataclasses.fields(part) if not f.metadata.get("internal")}
    special = {option.name for option in special_options()}
    listed = Counter(name for names in TOPICS.values() for name in names)
    assert set(listed) == fields | special
    assert listed.total() == len(listed)
    assert set(OFTEN) <= set(listed)
    for verb, rare in RARE.items():
        assert set(rare) <= {option.name for option in options_of(verb)}


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_help_is_one_screen(verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(SCREEN[0]))
    lines = printed(capsys, *([verb] if verb else []), "--help").splitlines()
    assert max(map(len, lines)) <= SCREEN[0]
    assert len(lines) <= SCREEN[1]
    examples = EXAMPLES[verb] if verb else ()
    assert {f"  megatron-memory {words}" for words in examples} <= set(lines)
    if verb in LONG:
        assert lines[-1] == f"megatron-memory {verb} --help-all lists all {len(options_of(verb))} options by topic."
    assert printed(capsys, "help", *([verb] if verb else [])).splitlines() == lines


@pytest.mark.parametrize("verb", LONG)
def test_help_all_has_every_option_once(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = Counter(re.split("  +", line[2:])[0] for line in printed(capsys, verb, "--help-all").splitlines())
    for option in options_of(verb):
        record = option.get_help_record(click.Context(command))
        assert record is not None and shown[record[0]] == 1, option.name


def test_a_screen_of_estimate_has_what_people_use(capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed(capsys, "estimate", "-h").split()
    for option in ("--num-gpus", "--tp", "--pp", "--ep", "--gpu", "--seq-length", "--recompute-granularity", "--json"):
        assert option in shown
    assert "--moe-latent-size" not in shown


def test_help_of_an_unknown_command_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["help", "estimat"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == 'error: No such command "estimat". Did you mean "estimate"?\n'


@pytest.fixture
def own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that examples name."""
    (tmp_path / "configs").mkdir()
    (tmp_path / "config.json").write_text(json.dumps(entries()["Qwen/Qwen3-8B"]["config"]))
    (tmp_path / "train.log").write_text(LINES)
    (tmp_path / "snapshot.pickle").write_bytes((FACTS / "snapshots" / "torch_2_10.pickle.gz").read_bytes())
    scripts = Path(__file__).parent / "launch_scripts"
    shutil.copy(scripts / "llama8b_04_defaults_arithmetic.sh", tmp_path / "run.sh")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_every_verb_has_examples() -> None:
    assert set(EXAMPLES) == set(VERBS)
    for verb, examples in EXAMPLES.items():
        assert (2 if verb in LONG else 1) <= len(examples) <= 4
        assert all(shlex.split(words)[0] == verb for words in examples)


@pytest.mark.parametrize("words", [words for examples in EXAMPLES.values() for words in examples])
def test_every_example_runs(
    words: str, own_files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if words.startswith("mcp"):
        line = [sys.executable, "-m", "megatron_memory_estimator", *shlex.split(words.replace("~", str(own_files)))]
        served = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
        assert served.stdout == ""
        return
    if words.startswith("serve"):
        assert ended_by_hand(shlex.split(words)) == 0
        return
    if words.startswith("site"):
        monkeypatch.setattr("megatron_memory_estimator.web.static.pyodide", small_pyodide)
    assert printed(capsys, *shlex.split(words))


def small_pyodide(given: str | None, release: Release) -> dict[str, bytes]:
    """Files with the names of Pyodide's: the real ones come from elsewhere, and are large."""
    return {name: archived({}) for name in release.files}


def ended_by_hand(words: list[str]) -> int:
    """The exit code of a server that gets Ctrl-C once it has said where it listens."""
    line = [sys.executable, "-m", "megatron_memory_estimator", *words, "--port", "0"]
    environment = {**os.environ, "BROWSER": "true"}
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline().startswith("http://127.0.0.1:")
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == process.stderr.read() == ""
    return process.returncode


def completed(args: list[str], incomplete: str) -> list[CompletionItem]:
    """What a shell is offered."""
    return BashComplete(command, {}, "megatron-memory", "_MEGATRON_MEMORY_COMPLETE").get_completions(args, incomplete)


@pytest.mark.parametrize(
    ("args", "incomplete", "found"),
    [
        ([], "e", ["estimate", "explain"]),
        (["estimate"], "google/gemma-2-", ["google/gemma-2-27b", "google/gemma-2-2b"]),
        (["plan"], "deepseek-v3.", ["deepseek-ai/DeepSeek-V3.2"]),
        (["compare", "Qwen/Qwen3-8B"], "Qwen/Qwen3-0", ["Qwen/Qwen3-0.6B"]),
        (["models"], "llama-4-s", ["meta-llama/Llama-4-Scout-17B-16E-Instruct"]),
        (["estimate", "x", "--gpu"], "b", ["B200-180GB", "B300-288GB"]),
        (["estimate", "x", "--gpu"], "a6", ["A6000"]),
        (["estimate", "x", "--recompute-granularity"], "", ["full", "selective"]),
        (["estimate", "x", "--recompute-modules"], "mlp,m", ["mlp,moe_act", "mlp,mla_up_proj", "mlp,moe", "mlp,mhc"]),
        (["estimate", "x", "--format"], "c", ["csv"]),
        (
            ["estimate", "--tp", "--pp", "x"],
            "--seq",
            ["--sequence-parallel", "--sequence-packing-scheduler", "--seq-length"],
        ),
        (["estimat"], "", list(VERBS)),
        (["help"], "m", ["models", "mcp"]),
    ],
    ids=str,
)
def test_words_complete(args: list[str], incomplete: str, found: list[str]) -> None:
    assert [item.value for item in completed(args, incomplete) if item.type == "plain"] == found


@pytest.mark.parametrize("shell", [BashComplete, ZshComplete, FishComplete])
def test_every_shell_has_its_script(shell: type[ShellComplete]) -> None:
    script = shell(command, {}, "megatron-memory", "_MEGATRON_MEMORY_COMPLETE").source()
    assert f"_MEGATRON_MEMORY_COMPLETE={shell.name}_complete" in script


def test_a_model_may_be_a_file() -> None:
    first, *names = completed(["estimate"], "Qwen/Qwen3-0")
    assert first.type == "file" and [item.value for item in names] == ["Qwen/Qwen3-0.6B"]


@pytest.mark.parametrize("verb", ["estimate", "plan", "advise", "compare", "explain"])
def test_completion_imports_nothing_of_an_estimate(verb: str) -> None:
    code = (
        "import os, sys\nfrom megatron_memory_estimator.cli import main\n"
        f"os.environ |= {{'COMP_WORDS': 'megatron-memory {verb} Qwen/Qwen3-0', 'COMP_CWORD': '2', "
        "'_MEGATRON_MEMORY_COMPLETE': 'bash_complete'}\n"
        "try:\n    main([])\nexcept SystemExit:\n    pass\n"
        "rooms = {m.split('.')[1] for m in sys.modules if m.startswith('megatron_memory_estimator.')"
        " and m.partition('.')[2] not in ('planner', 'planner.asked')}\n"  # names of axes
        "heavy = {'numpy', 'rich', 'yaml', 'huggingface_hub'} & set(sys.modules)\n"
        "print(sorted(rooms & {'estimator', 'rank', 'device', 'modules', 'states', 'planner', 'report'}), sorted(heavy))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "file,Qwen/Qwen3-0\nplain,Qwen/Qwen3-0.6B\n[] []\n"
