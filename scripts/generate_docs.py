"""Fill the generated parts of README.md and docs/: the output of commands, and tables made from the code.

A block begins with `<!-- run: COMMAND -->` (the output of a command) or `<!-- table: NAME -->` and ends with
`<!-- end -->`. With --check, changes nothing and exits with 1 when a block is out of date.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

    from megatron_memory_estimator.throughput.calibrate import Measured
    from megatron_memory_estimator.validation.replay import Replay

ROOT = Path(__file__).resolve().parent.parent
LAYOUT = (
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size", "context_parallel_size",
    "expert_model_parallel_size", "expert_tensor_parallel_size", "sequence_parallel", "pipeline_model_parallel_layout",
    "microbatch_group_size_per_vp_stage", "cp_comm_type", "padded_vocab_size",
)  # fmt: skip
BLOCK = re.compile(r"(<!-- (run|table): (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def output(command: str) -> str:
    """What a command prints, as a fenced block with the command first."""
    from megatron_memory_estimator.cli import main

    head, *rest = command.split(" | ")
    words = shlex.split(head)
    assert words[0] == "megatron-memory", command
    os.environ.pop("COLUMNS", None)
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        main(words[1:])
    lines = [line.rstrip() for line in text.getvalue().rstrip("\n").split("\n")]
    for cut in rest:  # head -N, or sed -n A,Bp
        first, last = (
            cut.removeprefix("sed -n ").removesuffix("p").split(",")
            if "sed" in cut
            else (1, cut.removeprefix("head -"))
        )
        lines = lines[int(first) - 1 : int(last)]
    return "```console\n$ " + command + "\n" + "\n".join(lines) + "\n```\n"


def table(name: str) -> str:
    """A table made from the code."""
    makers = {
        "settings": settings,
        "models": models,
        "refused": refused,
        "not_read": not_read,
        "measured": measured,
        "skill": skill,
        "megatron arguments": megatron_arguments,
        "accuracy sums": accuracy_sums,
        "accuracy groups": accuracy_groups,
        "accuracy cases": accuracy_cases,
        "accuracy refused": accuracy_refused,
        "accuracy low": accuracy_low,
        "accuracy differences": accuracy_differences,
        "accuracy bounds": accuracy_bounds,
        "recipes": recipes,
        "throughput": throughput_rows,
        "throughput sums": throughput_sums,
        "throughput pairs": throughput_pairs,
        "throughput constants": throughput_constants,
        "axes": axes,
        "published plans": published_plans,
    }
    return makers[name]()


def markdown(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def settings() -> str:
    """Every setting with its option, default and meaning."""
    from megatron_memory_estimator.cli.options import SECTIONS, option_names

    parts = []
    for title, part in SECTIONS:
        rows = []
        for field in dataclasses.fields(part):
            if not field.metadata.get("internal"):
                choices = field.metadata.get("choices") or ()
                text = str(field.metadata["help"]) + (f" ({', '.join(choices)})" if choices else "")
                rows.append((f"`{field.name}`", f"`{'`, `'.join(option_names(field))}`", f"`{field.default!r}`", text))
        parts.append(
            f"### {title.capitalize()}\n\n" + markdown(("setting", "option", "class default", "meaning"), rows)
        )
    return "\n".join(parts)


def models() -> str:
    """Bundled models with their parameters."""
    from megatron_memory_estimator import count_parameters
    from megatron_memory_estimator.inputs.catalog import entries
    from megatron_memory_estimator.inputs.hf import load
    from megatron_memory_estimator.inputs.resolve import model_of

    rows = []
    for name, entry in entries().items():
        if name == "deepseek-ai/DeepSeek-V4-Flash":
            rows.append((f"`{name}`", "deepseek_v4", "-", "-", "refused", entry["source"]))
            continue
        loaded = load(name)
        count = count_parameters(model_of(loaded))
        memory = "parameters only" if loaded.refusal else "yes"
        active = f"{count.active:,}" if count.active != count.total else ""
        rows.append((f"`{name}`", loaded.model_type, f"{count.total:,}", active, memory, entry["source"]))
    return markdown(("model", "type", "parameters", "active", "memory", "source of the config"), rows)


def refused() -> str:
    """Why the memory of a family is refused."""
    from megatron_memory_estimator.inputs.catalog import entries
    from megatron_memory_estimator.inputs.hf import load
    from megatron_memory_estimator.inputs.hf.families import FAMILIES
    from megatron_memory_estimator.inputs.hf.fields import Fields

    reasons: dict[str, str] = {}
    for name in entries():
        if name != "deepseek-ai/DeepSeek-V4-Flash":
            loaded = load(name)
            if loaded.refusal:
                reasons.setdefault(loaded.model_type, loaded.refusal.split(": ", 1)[1])
    reasons["exaone4"] = FAMILIES["exaone4"](Fields({})).refusal
    return markdown(("model_type", "why"), [(f"`{kind}`", why) for kind, why in reasons.items()])


def not_read() -> str:
    """Kinds of config that are refused whole."""
    from megatron_memory_estimator.inputs.hf.families import REFUSED

    kinds: dict[str, list[str]] = {}
    for kind, why in REFUSED.items():
        kinds.setdefault(why, []).append(f"`{kind}`")
    return markdown(("model_type", "what is not modelled"), [(", ".join(names), why) for why, names in kinds.items()])


def measured() -> str:
    """Measured peaks of real runs beside the estimate."""
    import json

    from megatron_memory_estimator import TrainingJob, estimate

    rows = []
    for case in json.loads((ROOT / "tests/facts/measured_b200.json").read_text())["records"]:
        job = TrainingJob.from_megatron_args(
            case["args"], 8, gpu="B200", transformer_engine_version="2.11", megatron_core_version="0.14"
        )
        stages = estimate(job).stages
        for stage in stages:
            per = 8 // len(stages)
            peaks = case["max_allocated_bytes"][stage.pp_rank * per : (stage.pp_rank + 1) * per]
            state = sum(s.nbytes for s in stage.rank.states if s.since in ("setup", "first step"))
            ours, worst = stage.peak_allocated_bytes, max(peaks)
            rows.append(
                (
                    f"`{case['case']}`",
                    str(stage.pp_rank),
                    f"{min(peaks) / 2**30:.3f} - {worst / 2**30:.3f}",
                    f"{ours / 2**30:.3f}",
                    f"{100 * (ours / worst - 1):+.3f} %",
                    f"{100 * ((ours - state) / (worst - state) - 1):+.2f} %",
                )
            )
    header = ("case", "stage", "measured GiB (its ranks)", "estimated GiB", "error", "error without model state")
    return markdown(header, rows)


def skill() -> str:
    """The commands of the earlier skill: its result and ours."""
    import json

    from megatron_memory_estimator.cli.estimate_from_hf import answer, parser

    config = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
              "intermediate_size": 11008, "vocab_size": 32000}  # fmt: skip
    rows = []
    for record in json.loads((ROOT / "tests/facts/skill_commands.json").read_text())["records"]:
        words = shlex.split(record["command"])[2:]
        values = vars(parser().parse_args(words))
        del values["json"], values["verbose"]
        if values["model_path"] == "/path/to/config.json":
            values.update(model_path=None, custom_config=json.dumps(config))
        result = answer(values)
        top, gpus = result.peak_stage, result.job.layout.world_size
        stages = "/".join(str(sum(len(p.chunk.layers) for p in stage.rank.plans)) for stage in result.stages)
        ours = f"{top.peak_allocated_bytes / 2**30:.2f} GiB: stage {top.pp_rank} of {stages} layers, {gpus} GPUs"
        rows.append((f"`{' '.join(words)}`", record["original"], ours))
    return markdown(("command: `estimate_from_hf.py` ...", "original", "ours"), rows)


def megatron_arguments() -> str:
    """Every argument of Megatron-LM with its class."""
    from megatron_memory_estimator.inputs.megatron_args import argument_class
    from megatron_memory_estimator.inputs.megatron_arguments import arguments

    rows = []
    for argument in sorted(arguments()[0].values(), key=lambda argument: argument.flag):
        flag = "--" + argument.flag.replace("_", "-")
        dest = f"`{argument.dest}`" if argument.dest != argument.flag else ""
        rows.append((f"`{flag}`", dest, f"`{argument.default}`", argument_class(argument.dest)))
    return markdown(("argument", "sets", "default of what it sets", "class"), rows)


@functools.cache
def replays() -> list[Replay]:
    """Every run of the table, replayed."""
    from megatron_memory_estimator.validation.replay import replay
    from megatron_memory_estimator.validation.runs import read_runs

    return [replay(run) for run in read_runs()]


def accuracy_sums() -> str:
    """Median, 90th percentile and worst group, by kind, family and feature."""
    from megatron_memory_estimator.report.validation import summary_rows

    return markdown(("groups", "steady", "peak", "first step", "beyond state"), summary_rows(replays()))


def accuracy_groups() -> str:
    """One row per group, worst peak first."""
    from megatron_memory_estimator.report.validation import score_row
    from megatron_memory_estimator.validation.score import scores

    header = ("group", "family", "runs", "steady", "peak", "first step", "beyond state", "peak, signed mean")
    return markdown(header, [score_row(score) for score in scores(replays())])


def accuracy_cases() -> str:
    """One row per run that is not refused, with the published formulas."""
    from megatron_memory_estimator.report.validation import case_row, percent

    rows = []
    for found in replays():
        if not found.refused:
            name, *cells = case_row(found)
            formulas = {formula: percent(pair.error) for formula, pair in found.formulas}
            gpu = f"{found.run.num_gpus} x {found.run.gpu}"
            rows.append((f"`{name}`", gpu, *cells, formulas.get("bridge", "-"), formulas.get("megatron_lm", "-")))
    header = (
        "run",
        "GPUs",
        "steady GiB",
        "error",
        "peak GiB",
        "error",
        "first step",
        "beyond state",
        "Bridge",
        "Megatron-LM",
    )
    return markdown(header, rows)


def accuracy_low() -> str:
    """Runs whose peak is under-estimated notably, worst first."""
    from megatron_memory_estimator.report.validation import NOTABLE, percent
    from megatron_memory_estimator.validation.score import under_estimated

    rows = [(f"`{one.run.id}`", percent(one.peak.error)) for one in under_estimated(replays(), NOTABLE) if one.peak]
    return markdown(("run", "peak"), rows)


def accuracy_differences() -> str:
    """Pairs of runs that differ in one thing."""
    from megatron_memory_estimator.hardware import GIB
    from megatron_memory_estimator.validation.differences import differences

    rows = [
        (
            d.what,
            d.figure.replace("_", " "),
            f"{d.measured / GIB:+.3f}",
            f"{d.estimated / GIB:+.3f}",
            "yes" if d.agrees else "no",
            d.source,
        )
        for d in differences()
    ]
    return markdown(("change", "figure", "measured GiB", "estimated GiB", "agrees", "source"), rows)


def recipes() -> str:
    """Published recipes: what is known of them, and the verdict."""
    from megatron_memory_estimator import EstimatorError, TrainingJob, estimate
    from megatron_memory_estimator.hardware import GIB

    rows = []
    for line in (ROOT / "tests" / "facts" / "recipes.jsonl").read_text().splitlines():
        one = json.loads(line)
        known = "runs" if one["fits"] else "out of memory"
        start = (f"`{one['id']}`", f"{one['num_gpus']} {one['gpu']}", known)
        try:
            settings = {"gpu": one["gpu"], "env": one["env"], "transformer_engine_version": "2.17"}
            job = TrainingJob.from_bridge(one["bridge"], one["num_gpus"], **settings)
            found = estimate(job)
        except EstimatorError as error:
            rows.append((*start, "", "", f"refused: {error}"))
            continue
        high = max(stage.device.high for stage in found.stages)
        needed = max(stage.needed_bytes for stage in found.stages)
        verdict = next(word for name, _, word in found.verdicts() if name == job.gpu.name)
        peak = found.peak_stage.peak_allocated_bytes
        rows.append((*start, f"{peak / GIB:.1f}", f"{needed / GIB:.1f} - {high / GIB:.1f}", verdict))
    header = ("recipe", "GPUs", "known", "peak allocated GiB", "needed - most on the device GiB", "verdict")
    return markdown(header, rows)


def axes() -> str:
    """Every axis of a search with its usual values for one model, and with --complete."""
    from megatron_memory_estimator import TrainingJob
    from megatron_memory_estimator.planner.space import AXES, Space, completed

    job = TrainingJob.from_hf("deepseek-ai/DeepSeek-V3", 1, gpu="H100", global_batch_size=8192)
    spaces = [completed(Space(num_gpus=(2048,)), job, everything=everything) for everything in (False, True)]
    rows = []
    for name in AXES:
        shown = [", ".join(str(value).lower() for value in getattr(space, name)) for space in spaces]
        rows.append((f"`{name}`", shown[0], "the same" if shown[0] == shown[1] else shown[1]))
    return markdown(("axis", "usually", "with --complete"), rows)


def published_plans() -> str:
    """Published layouts beside the first choice of the planner (scripts/plan_published.py)."""
    records = [
        json.loads(line) for line in (ROOT / "tests" / "facts" / "published_plans.jsonl").read_text().splitlines()
    ]
    rows = []
    for one in records:
        why = one["why"]
        if one["gap"] < -0.15:
            why = "the published layout is tight; a first choice must surely fit"
        rows.append(
            (
                f"`{one['id']}`",
                one["verdict"],
                f"{one['theirs']:,}",
                f"{one['best']:,}",
                f"{-one['gap']:+.0%}",
                one["layout"],
                why,
            )
        )
    near = sum(abs(one["gap"]) <= 0.15 for one in records)
    behind = sum(one["gap"] > 0.15 for one in records)
    head = f"{len(records)} runs, all legal; {near} within 15 % of the first choice, {behind} more than 15 % behind it.\n\n"
    header = (
        "run",
        "published layout",
        "its rate, predicted",
        "first choice, predicted",
        "published against first",
        "first choice",
        "why it differs by more than 15 %",
    )
    return head + markdown(header, rows)


@functools.cache
def measured_rates() -> tuple[list[Measured], list[dict[str, Any]], list[float], list[float]]:
    """Published rates: runs, their records, errors, and errors with efficiencies fitted to other families (primary runs only)."""
    from megatron_memory_estimator import TrainingJob, estimate
    from megatron_memory_estimator.throughput.calibrate import Measured, errors, leave_one_family_out

    records = [json.loads(line) for line in (ROOT / "tests" / "facts" / "throughput.jsonl").read_text().splitlines()]
    records.sort(key=lambda record: not record["primary"])
    runs = []
    for one in records:
        job = TrainingJob.from_bridge(one["bridge"], one["num_gpus"], gpu=one["gpu"], transformer_engine_version="2.17")
        runs.append(Measured(one["id"], one["family"], estimate(job), one["tokens_per_s_gpu"]))
    primary = [run for run, one in zip(runs, records, strict=True) if one["primary"]]
    return runs, records, errors(runs), leave_one_family_out(primary)


def _spread(values: list[float]) -> tuple[str, ...]:
    from statistics import median

    size = sorted(abs(value) for value in values)
    within = sum(value <= 0.25 for value in size) / len(size)
    p90 = size[int(0.9 * (len(size) - 1))]
    return (str(len(size)), f"{median(size):.1%}", f"{p90:.1%}", f"{within:.0%}", f"{median(values):+.1%}")


def throughput_sums() -> str:
    """Errors of published rates in sum."""
    _, records, found, held = measured_rates()
    primary = [error for error, one in zip(found, records, strict=True) if one["primary"]]
    other = [error for error, one in zip(found, records, strict=True) if not one["primary"]]
    rows = [
        ("looked at: verified cards, newest table, SimuMax", *_spread(primary)),
        ("the same, efficiencies fitted to the other families", *_spread(held)),
        ("no constant set on them: other recipes of releases 26.06 to 26.08", *_spread(other)),
        ("not looked at: arXiv 2205.05198 (A100, 2022)", *_spread(paper_errors())),
    ]
    return markdown(("runs", "number", "median error", "90th percentile", "within 25 %", "bias"), rows)


def paper_errors() -> list[float]:
    """Errors of the published rates that nothing was set on."""
    from megatron_memory_estimator import TrainingJob, estimate
    from megatron_memory_estimator.throughput.calibrate import Measured, errors

    runs = []
    for one in map(json.loads, (ROOT / "tests" / "facts" / "throughput_papers.jsonl").read_text().splitlines()):
        job = TrainingJob.from_bridge(one["bridge"], one["num_gpus"], gpu=one["gpu"], **one["settings"])
        runs.append(Measured(one["id"], one["family"], estimate(job), one["tokens_per_s_gpu"]))
    return errors(runs)


def throughput_constants() -> str:
    """Every constant of the throughput model with its source and effect, over one run of each family and GPU."""
    sys.path.insert(0, str(ROOT / "scripts"))
    import throughput_constants as constants

    runs, records, _, _ = measured_rates()
    first = {(run.family, one["gpu"]): run.estimate for run, one in zip(runs, records, strict=True)}
    head = f"One run of each model family and GPU, {len(first)} in all.\n\n"
    return head + markdown(("constant", "value", "source", "median effect on the step of a fifth more", "largest"),
                           list(constants.rows(list(first.values()))))  # fmt: skip


def throughput_rows() -> str:
    """Every published rate."""
    runs, records, found, held = measured_rates()
    rows = []
    for index, (run, one) in enumerate(zip(runs, records, strict=True)):
        out = f"{held[index]:+.0%}" if one["primary"] else ""
        rows.append(
            (
                f"`{run.id}`",
                f"{one['num_gpus']} {one['gpu']}",
                f"{run.tokens_per_s_gpu:.0f}",
                f"{found[index]:+.0%}",
                out,
            )
        )
    return markdown(("run", "GPUs", "tokens/s/GPU", "error", "fitted to other families"), rows)


def throughput_pairs() -> str:
    """Pairs of runs that differ in layout or recomputation alone."""
    from itertools import combinations

    runs, records, found, _ = measured_rates()

    def alike(one: dict[str, Any]) -> str:
        bridge = one["bridge"]
        kept = {k: v for k, v in bridge["model"].items() if not k.startswith(("recompute", "cuda_graph"))}
        for name in LAYOUT:
            kept.pop(name, None)
        same = [
            kept,
            one["gpu"],
            one["num_gpus"],
            bridge["mixed_precision"],
            bridge["train"]["global_batch_size"],
            one["id"][:12],
        ]
        return json.dumps(same, sort_keys=True)

    rows, right = [], 0
    for i, j in combinations(range(len(runs)), 2):
        if alike(records[i]) != alike(records[j]):
            continue
        measured = runs[j].tokens_per_s_gpu / runs[i].tokens_per_s_gpu
        if abs(measured - 1) < 0.05:
            continue
        predicted = measured * (1 + found[j]) / (1 + found[i])
        ok = (predicted > 1) == (measured > 1)
        right += ok
        rows.append(
            (f"`{runs[i].id}`", f"`{runs[j].id}`", f"{measured:.2f}", f"{predicted:.2f}", "yes" if ok else "no")
        )
    return f"{right} of {len(rows)} are in the right order.\n\n" + markdown(
        ("from", "to", "measured ratio", "predicted", "order"), rows
    )


def accuracy_bounds() -> str:
    """The closing lines of `validate`."""
    from megatron_memory_estimator.report.validation import closing_lines

    return "\n".join(f"- {line}" for line in closing_lines(replays()))


def accuracy_refused() -> str:
    """Runs that are refused, by reason."""
    reasons: dict[str, list[str]] = {}
    for found in replays():
        if found.refused:
            reasons.setdefault(found.refused, []).append(found.run.id)
    rows = [(why, str(len(ids)), f"`{ids[0]}`") for why, ids in sorted(reasons.items(), key=lambda item: -len(item[1]))]
    return markdown(("why", "runs", "such as"), rows)


def filled(text: str) -> str:
    """The text with every block made anew."""

    def block(match: re.Match[str]) -> str:
        made = output(match.group(3)) if match.group(2) == "run" else table(match.group(3))
        return match.group(1) + made + match.group(4)

    return BLOCK.sub(block, text)


def pages() -> list[Path]:
    """README and every page of the docs."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def stale() -> list[str]:
    """Pages whose blocks are out of date."""
    return [str(page.relative_to(ROOT)) for page in pages() if filled(page.read_text()) != page.read_text()]


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        wrong = stale()
        print("\n".join(wrong))
        sys.exit(bool(wrong))
    for page in pages():
        page.write_text(filled(page.read_text()))
