"""Every reader of outside input, with what is mutated for it: the table READERS."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from megatron_memory_estimator import TrainingJob
from megatron_memory_estimator.evidence.figures import figures, out_of_memory
from megatron_memory_estimator.inputs.hf.convert import convert
from megatron_memory_estimator.inputs.hf.load import parse
from megatron_memory_estimator.inputs.runs.files import job_from_file
from megatron_memory_estimator.inputs.shell.script import Beside, read_script
from megatron_memory_estimator.job.layer_kinds import frequency_list
from megatron_memory_estimator.job.pipeline import parse_layout
from megatron_memory_estimator.throughput.calibrate import calibrate
from megatron_memory_estimator.validation.logs import read_log
from megatron_memory_estimator.validation.replay import replay
from megatron_memory_estimator.validation.runs import read_runs
from megatron_memory_estimator.validation.steps import read_measured

from . import seeds
from .commands import COMMANDS
from .dialects import DIALECTS
from .mutate import Words, argv, text, tree
from .requests import REQUESTS
from .watch import Outcome, Reader, written

SHELL_PIECES = (
    *seeds.SNIPPETS, *seeds.RUNS, "$A", "${A", "$((", "))", "$(", ")", "<<EOF\n", "EOF\n", "<<<", "&&", "||", ";;", "if", "then", "fi",
    "for",
    "do", "done",
    "case", "esac", "in", "[[", "]]", "[", "]", "{", "}", "function", "A+=", 'A="$A$A"', "R=(", "eval ", "source ", "unset ",
    "local",
    "declare -A", "read", "printf", "set -u", "\\\n", "#", "$'\\x41'", "{1..9}", "{a,b}", "~", "*", "?", "!", "=~", "trap", "exit",
    "shopt -s extglob", "mapfile", "select", "time", "coproc",
    "((V++))", "$((A=8))", "${!A}", "${!A:-x}", "${@: -1}", "${!A*}", "[[:space:]]",
    "getopts t:x o", "$OPTARG", "shift $((OPTIND - 1))", "return", "break", "continue", "| bash", "| while read A; do", "source ./run.sh",
    '. "$(dirname "$0")/x.sh"', "cd ..", "<path to x>", "\\ # x\n", "megatron sft", "-m verl.trainer.main_ppo", "#SBATCH --nodes=2\n",
    "| tr a-z A-Z", "| cut -d, -f1", "| bc", "for X in 1 2; do", "sbatch <<EOF\n", "EXP=x bash examples/run_pretrain.sh",
    "${A@Q}", ">(", "<(", "2>&1", "|&", "getopts ab: V",
)  # fmt: skip


def changed_text(random: Random, case: Any, other: Any, words: Words) -> Any:
    """A text changed."""
    return text(random, case, other, words)


def changed_tree(random: Random, case: Any, other: Any, words: Words) -> Any:
    """A mapping changed; at its root it stays one, mostly."""
    found = tree(random, case, other, words)
    return found if isinstance(found, dict) else case


def changed_words(random: Random, case: Any, other: Any, words: Words) -> Any:
    """Words of a command line changed."""
    return argv(random, case, other, words)


def job_said(job: TrainingJob) -> Outcome:
    """What is said about a job that was accepted."""
    return Outcome(True, (*job.assumptions, *job.warnings, job.name, job.refusal))


def read_shell(case: Any, folder: Path) -> Outcome:
    """The script's launch; of every third one that is read, the job."""
    beside = Beside(written(folder, "run.sh", case)) if len(case) % 2 else None
    words = ("4", "-t", "8", "--x=1")[: len(case) % 5] if "$@" in case or "getopts" in case else ()
    launch = read_script(case, {"NNODES": "2"} if len(case) % 2 else None, words, beside)
    if len(case) % 3 == 0:
        return job_said(TrainingJob.from_megatron_args(written(folder, "run.sh", case)))
    return Outcome(True, tuple(launch.notes))


def read_config(case: Any, folder: Path) -> Outcome:
    """The job of the fields of a config.json."""
    return job_said(TrainingJob.from_hf(case, 8))


def read_config_text(case: Any, folder: Path) -> Outcome:
    """The model of the text of a config.json."""
    loaded = convert(parse(case.encode("utf-8", "surrogatepass"), "config.json"), "config.json", "config.json")
    return Outcome(True, (*loaded.warnings, loaded.name, loaded.refusal))


def read_arguments(case: Any, folder: Path) -> Outcome:
    """The job of Megatron-LM arguments."""
    return job_said(
        TrainingJob.from_megatron_args(case, 8 if len(case) % 4 else None, ignore_unknown=len(case) % 3 == 0)
    )


def read_yaml_file(case: Any, folder: Path) -> Outcome:
    """The job of a YAML file, a run description or arguments; a mapping is written as JSON, which YAML includes."""
    return job_said(job_from_file(written(folder, "run.yaml", case), None, {}))


def read_bridge(case: Any, folder: Path) -> Outcome:
    """The job of a Megatron-Bridge config: a mapping, or the text of its YAML."""
    what = case if isinstance(case, dict) else written(folder, "run_config.yaml", case)
    return job_said(TrainingJob.from_bridge(what, None if len(case) % 2 else 8))


def read_expression(case: Any, folder: Path) -> Outcome:
    """A layout string, a frequency of MoE layers or a hybrid pattern, by the word before the text."""
    kind, _, given = case.partition(" ")
    if kind == "layout":
        stages = parse_layout(given)
        made = {"pipeline_model_parallel_layout": given, "pipeline_model_parallel_size": 2 - len(stages) % 2}
        return job_said(
            TrainingJob.from_config({**seeds.DENSE, "num_layers": max("".join(stages).count("t"), 1)}, 8, **made)
        )
    if kind == "freq":
        frequency_list("moe_layer_freq", given, 4)
        return job_said(TrainingJob.from_config({**seeds.EXPERTS, "moe_layer_freq": given}, 8))
    return job_said(TrainingJob.from_config({**seeds.EXPERTS, "moe_layer_freq": 1, "hybrid_layer_pattern": given}, 8))


EXPRESSIONS = [
    "layout Ett|ttL", "layout Ettt|(tt|)*29,m|L", "layout E(t*2|)*3L", "layout E|t*3|m*2|L", "freq ([0]*1+[1]*3)", "freq [0,1]*2", "freq 2",
    "freq ((([0])*1)+2*[1]*1+[0])", "pattern M*-M", "pattern MEM*/M*/M*", "pattern M|*|-|E", "pattern G+G-",
]  # fmt: skip
SYMBOLS = Words((*"Etm|L*()+[],0123456789/MGDE-", "t*3|", "(t|)*9", "[0]*3", "+[1]", "*99", "99999", "((", "))"))


def read_log_file(case: Any, folder: Path) -> Outcome:
    """The memory reports and figures of a training log."""
    read_log(case)
    figures(case)
    out_of_memory(case)
    return Outcome(True)


LOG_WORDS = Words(
    (
        "[Rank 0]",
        "memory (MB)",
        "(after 2 iterations)",
        "| max reserved: ",
        "Memory-Usage when oom: {",
        "'used_GB': 1",
        "'allocated_GB': 2, 'reserved_GB': 3",
        "out of memory. Tried to allocate ",
        "2.00 GiB",
        "index, memory.used [MiB]\n",
        "0, 9 MiB\n",
        "VRAM Total Used Memory (B)",
        '"Step","a - mem-reserved-bytes"\n',
        '{"_step": 1, "mem-max-allocated-bytes": ',
        "memory: 1GiB(",
        "9" * 400,
        "memory (GB)",
        "allocated:",
        "| max allocated: ",
        "1e999",
        "1.2.3",
        ".",
        "1e-30",
        "\n",
        "|",
        *seeds.LOGS,
    )
)


def read_against(case: Any, folder: Path) -> Outcome:
    """Measured runs, replayed."""
    found = [replay(run) for run in read_runs(written(folder, "runs.jsonl", lines(case)))]
    return Outcome(True, tuple(one.refused for one in found if one.refused))


def read_calibration(case: Any, folder: Path) -> Outcome:
    """Measured steps, and the efficiencies that follow."""
    calibrate(read_measured(written(folder, "steps.jsonl", lines(case))))
    return Outcome(True)


def lines(case: Any) -> str:
    """Records as lines of JSON; a text stands as it is."""
    return case if isinstance(case, str) else "\n".join(json.dumps(case[key]) for key in case)


def _records(record: dict[str, Any]) -> list[Any]:
    other = {key: value for key, value in record.items() if key not in ("bridge", "args")}
    with_args = {**other, "args": seeds.RUN["args"]}
    with_bridge = {**other, "bridge": seeds.STEP["bridge"]}
    return [{"1": record}, {"1": record, "2": {**with_args, "id": "2"}}, {"1": {**with_bridge, "id": "3"}}]


def run_seeds() -> list[Any]:
    """Files of measured runs."""
    return _records(seeds.RUN)


def step_seeds() -> list[Any]:
    """Files of measured steps."""
    named = {key: value for key, value in seeds.STEP.items() if key != "bridge"}
    return [*_records(seeds.STEP), {"1": {**named, "model": "Qwen/Qwen3-0.6B", "num_gpus": 8}}]


def shell_words() -> Words:
    """Constructs of scripts."""
    return Words(SHELL_PIECES)


def yaml_texts() -> list[Any]:
    """Run descriptions and arguments as text."""
    import yaml

    return [*seeds.YAML_TEXTS, *(yaml.safe_dump(one) for one in seeds.documents())]


def bridge_texts() -> list[Any]:
    """Megatron-Bridge configs as YAML."""
    import yaml

    return [yaml.safe_dump(one) for one in seeds.bridges()]


def config_texts() -> list[Any]:
    """Texts of a config.json."""
    return [json.dumps(one, indent=1) for one in seeds.configs()]


def expression_seeds() -> list[Any]:
    """Layout strings, frequencies and patterns."""
    return list(EXPRESSIONS)


def log_seeds() -> list[Any]:
    """Training logs."""
    return [*seeds.LOGS, "".join(seeds.LOGS)]


def symbols() -> Words:
    """Symbols of layouts and patterns."""
    return SYMBOLS


def log_words() -> Words:
    """Parts of memory lines."""
    return LOG_WORDS


def yaml_words() -> Words:
    """What YAML has, and names of settings."""
    found = seeds.keys()
    marks = (
        "!!int ",
        "!!float ",
        "!!bool ",
        "!!str ",
        "!!set ",
        "&a ",
        "*a",
        "<<: ",
        "? ",
        "- ",
        ": ",
        "|\n ",
        ">\n ",
        "---\n",
        "1:2:3",
        ".nan",
        ".inf",
        "2026-01-01",
        "%YAML 1.1\n",
    )
    return Words((*marks, *(f"{name}: " for name in found.names), *found.pieces), found.names)


READERS: dict[str, Reader] = {
    one.name: one
    for one in (
        Reader("shell", seeds.scripts, changed_text, read_shell, shell_words),
        Reader("hf_tree", seeds.configs, changed_tree, read_config, seeds.hugging_face_keys),
        Reader("hf_text", config_texts, changed_text, read_config_text, seeds.hugging_face_keys),
        Reader("arguments", seeds.word_lists, changed_words, read_arguments, seeds.flags),
        Reader("yaml_tree", seeds.documents, changed_tree, read_yaml_file, seeds.keys, names_files=True),
        Reader("yaml_text", yaml_texts, changed_text, read_yaml_file, yaml_words, names_files=True),
        Reader("bridge_tree", seeds.bridges, changed_tree, read_bridge, seeds.keys),
        Reader("bridge_text", bridge_texts, changed_text, read_bridge, yaml_words),
        Reader("expressions", expression_seeds, changed_text, read_expression, symbols),
        Reader("logs", log_seeds, changed_text, read_log_file, log_words),
        Reader("against", run_seeds, changed_tree, read_against, seeds.keys),
        Reader("calibrate", step_seeds, changed_tree, read_calibration, seeds.keys),
        *COMMANDS,
        *DIALECTS,
        *REQUESTS,
    )
}
