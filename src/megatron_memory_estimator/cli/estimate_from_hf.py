"""The command line of the skill's script `estimate_from_hf.py`; it needs nothing but Python and this package."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
import sys
from typing import Any, NoReturn

from ..errors import ConfigError, EstimatorError, LayoutError
from ..estimator import Estimate, estimate
from ..job.layout import SHORT
from ..job.training_job import TrainingJob
from . import fail, output_failed

DEFAULT_GPUS = 8


class Parser(argparse.ArgumentParser):
    """Mistakes are one sentence and exit code 2; an unknown option names the nearest."""

    def error(self, message: str) -> NoReturn:
        prefix = "unrecognized arguments: "
        if message.startswith(prefix):
            word = message[len(prefix) :].split()[0]
            near = difflib.get_close_matches(word.split("=")[0], self._option_string_actions, n=1)
            message = f"no such option {word}" + (f"; did you mean {near[0]}?" if near else "")
        fail(message)


def parser() -> Parser:
    """Every option of the earlier script, and a few of this package."""
    p = Parser(
        prog="estimate_from_hf.py", allow_abbrev=False,
        description="GPU memory of a Megatron training run, for every pipeline stage, from a Hugging Face config.",
    )  # fmt: skip
    p.add_argument("model_path", nargs="?", help="Hub id, directory or config.json")
    p.add_argument("--custom-config", metavar="JSON", help="a Hugging Face config as a JSON string")
    for short, name in SHORT.items():
        default = None if short in ("etp", "vpp") else 1
        p.add_argument(f"--{short}", dest=name, type=int, default=default, metavar="N", help=name.replace("_", " "))
    for end in ("first", "last"):
        p.add_argument(
            f"--num-layers-in-{end}-pipeline-stage", type=int, metavar="N", help=f"layers of the {end} stage"
        )
    p.add_argument("--micro-batch-size", type=int, default=1, metavar="N", help="sequences of a microbatch (default 1)")
    p.add_argument("--seq-length", type=int, default=4096, metavar="N", help="sequence length (default 4096)")
    p.add_argument(
        "--num-gpus",
        type=int,
        metavar="N",
        help=f"GPUs (default {DEFAULT_GPUS} if legal, else the smallest legal count)",
    )
    p.add_argument("--use-distributed-optimizer", action="store_true", default=True, help="the default")
    p.add_argument("--no-distributed-optimizer", dest="use_distributed_optimizer", action="store_false")
    p.add_argument("--recompute-granularity", choices=("full", "selective"))
    p.add_argument("--recompute-method", choices=("uniform", "block"), help="of full recomputation (default uniform)")
    p.add_argument(
        "--recompute-num-layers", type=int, metavar="N", help="layers of a checkpoint, or checkpointed layers"
    )
    p.add_argument("--recompute-modules", metavar="LIST", help="of selective recomputation, separated by commas")
    p.add_argument("--sequence-parallel", action="store_true", default=None, help="the default with tp above 1")
    p.add_argument("--no-sequence-parallel", dest="sequence_parallel", action="store_false")
    p.add_argument("--mtp-num-layers", type=int, metavar="N", help="multi-token prediction depths; 0 turns them off")
    p.add_argument("--global-batch-size", type=int, metavar="N", help="sequences of a step")
    p.add_argument("--gpu", help="GPU that kernels are chosen for")
    p.add_argument(
        "--router-imbalance", type=float, metavar="F", help="rows of the busiest rank of experts (default typical)"
    )
    p.add_argument("--expandable-segments", action="store_true", default=None, help="of PYTORCH_CUDA_ALLOC_CONF")
    p.add_argument("--phases", metavar="LIST", help="what the verdict holds: training alone, or all (the default)")
    p.add_argument("--strict", action="store_true", default=None, help="decide neither GPUs nor the split of layers")
    p.add_argument("--verbose", action="store_true", help="every tensor alive at each stage's peak")
    p.add_argument("--json", action="store_true", help="one JSON document")
    return p


def main(argv: list[str] | None = None) -> None:
    """Run the script; a refused input prints one sentence on standard error and exits with 2."""
    values = vars(parser().parse_args(argv))
    as_json, verbose = values.pop("json"), values.pop("verbose")
    try:
        result = answer(values)
    except EstimatorError as error:
        fail(str(error))
    from ..report.classic import classic_document, classic_text

    try:
        print(json.dumps(classic_document(result), indent=1) if as_json else classic_text(result, verbose=verbose))
        sys.stdout.flush()
    except OSError as error:
        output_failed(error)


def answer(values: dict[str, Any]) -> Estimate:
    """The estimate of parsed options."""
    path, custom = values.pop("model_path"), values.pop("custom_config")
    if (path is None) == (custom is None):
        raise ConfigError("give either a model (Hub id, directory or config.json) or --custom-config, not both")
    if custom is not None:
        from ..inputs.hf.load import parse

        path = parse(custom.encode("utf-8", "surrogateescape"), "--custom-config")
    settings = {name: value for name, value in values.items() if value is not None}
    if "recompute_modules" in settings:
        settings["recompute_modules"] = settings["recompute_modules"].replace(",", " ").split()
        if not settings["recompute_modules"]:
            raise ConfigError("--recompute-modules needs at least one module, such as core_attn")
    if settings.get("recompute_granularity") is None and "recompute_method" in settings:
        raise ConfigError("--recompute-method needs --recompute-granularity full")
    num_gpus = settings.pop("num_gpus", None)
    if num_gpus is not None or settings.get("strict"):
        return estimate(TrainingJob.from_hf(path, num_gpus, **settings))
    try:
        job = TrainingJob.from_hf(path, DEFAULT_GPUS, **settings)
        said = dataclasses.replace(job, assumptions=(*job.assumptions, f"num_gpus not given: {DEFAULT_GPUS}"))
        return estimate(said)
    except (LayoutError, ConfigError):
        return estimate(TrainingJob.from_hf(path, None, **settings))
