"""Tables made from the code: settings, models, families, arguments, axes."""

from __future__ import annotations

import dataclasses
from functools import partial

from docs_markdown import ROOT, markdown


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
    from megatron_memory_estimator.inputs.catalog import entries
    from megatron_memory_estimator.report.catalogue import model_facts, model_record

    rows = []
    for name, entry in entries().items():
        record = model_record(model_facts(name))
        total, active = record["num_parameters_total"], record["num_parameters_active"]
        memory = record["memory"] + (
            f"; {record['not_counted']}" if record["supported"] and record["not_counted"] else ""
        )
        kind = record["model_type"] or entry["config"]["model_type"]
        counts = ("-", "-") if total is None else (f"{total:,}", f"{active:,}" if active != total else "")
        rows.append((f"`{name}`", kind, *counts, memory, entry["source"]))
    return markdown(("model", "type", "parameters", "active", "memory", "source of the config"), rows)


def bridges() -> str:
    """Every bridge of Megatron-Bridge, and what becomes of its models."""
    from megatron_memory_estimator.inputs.hf.coverage import BRIDGES, status

    rows = []
    for bridge in BRIDGES:
        found = status(bridge)
        memory = f"{found.memory}: {found.reason}" if found.reason else found.memory
        rows.append((f"`{bridge.file}`", bridge.checkpoints, memory, found.code, found.tower))
    estimated = sum(row[2] == "estimated" for row in rows)
    head = ("bridge", "models", "memory", "true of", "vision or audio tower")
    return f"{estimated} of {len(rows)} are estimated.\n\n{markdown(head, rows)}"


def refused() -> str:
    """Why the memory of a family is refused."""
    from megatron_memory_estimator.inputs.catalog import entries
    from megatron_memory_estimator.report.catalogue import model_facts, model_record

    reasons: dict[str, str] = {}
    for name in entries():
        record = model_record(model_facts(name))
        if record["memory"] == "parameters only":
            reasons.setdefault(record["model_type"], record["reason"])
    return markdown(("model_type", "why"), [(f"`{kind}`", why) for kind, why in reasons.items()])


def not_read() -> str:
    """Kinds of config that are refused whole."""
    from megatron_memory_estimator.inputs.hf.families import REFUSED

    kinds: dict[str, list[str]] = {}
    for kind, why in REFUSED.items():
        kinds.setdefault(str(why), []).append(f"`{kind}`")
    return markdown(("model_type", "what is not modelled"), [(", ".join(names), why) for why, names in kinds.items()])


def megatron_arguments() -> str:
    """Every argument of Megatron-LM with its class."""
    from megatron_memory_estimator.inputs.megatron.classes import argument_class
    from megatron_memory_estimator.inputs.megatron.table import arguments

    rows = []
    for argument in sorted(arguments()[0].values(), key=lambda argument: argument.flag):
        flag = "--" + argument.flag.replace("_", "-")
        dest = f"`{argument.dest}`" if argument.dest != argument.flag else ""
        rows.append((f"`{flag}`", dest, f"`{argument.default}`", argument_class(argument.dest)))
    return markdown(("argument", "sets", "default of what it sets", "class"), rows)


def axes() -> str:
    """Every axis of a search with its usual values for one model, and with --complete."""
    from megatron_memory_estimator import TrainingJob
    from megatron_memory_estimator.planner.space.axes import AXES, Space
    from megatron_memory_estimator.planner.space.defaults import completed

    job = TrainingJob.from_hf("deepseek-ai/DeepSeek-V3", 1, gpu="H100", global_batch_size=8192)
    spaces = [completed(Space(num_gpus=(2048,)), job, everything=everything) for everything in (False, True)]
    rows = []
    for name in AXES:
        shown = [", ".join(str(value).lower() for value in getattr(space, name)) for space in spaces]
        rows.append((f"`{name}`", shown[0], "the same" if shown[0] == shown[1] else shown[1]))
    return markdown(("axis", "usually", "with --complete"), rows)


def features() -> str:
    """Every feature of a search."""
    from megatron_memory_estimator.planner.space.features import FEATURES

    rows = [
        (
            f"`{name}`",
            one.says,
            one.numerics + ("experimental" if one.experimental and not one.numerics else ""),
            f"`{one.source}`",
        )
        for name, one in FEATURES.items()
    ]
    return markdown(("feature", "what it is", "numbers it changes, or experimental", "source"), rows)


def published_features() -> str:
    """The sets of features of published recipes."""
    from megatron_memory_estimator.planner.space.features import published

    rows = [tuple(" ".join(values) for values in row) for row in published()]
    return markdown(("GPUs", "kind of model", "precision", "features", "models whose recipes have them"), rows)


def example(name: str, language: str) -> str:
    """A file of examples/ as a fenced block."""
    return f"```{language}\n{(ROOT / 'examples' / name).read_text()}```\n"


TABLES = {
    "example-sbatch": partial(example, "sbatch_if_it_fits.sh", "bash"),
    "example-sweep": partial(example, "sweep_on_dask.py", "python"),
    "example-action": partial(example, "github_action.yml", "yaml"),
    "settings": settings,
    "models": models,
    "bridges": bridges,
    "refused": refused,
    "not_read": not_read,
    "megatron arguments": megatron_arguments,
    "axes": axes,
    "features": features,
    "published features": published_features,
}
