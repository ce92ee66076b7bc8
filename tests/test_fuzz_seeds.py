"""Inputs that once crashed a reader get a sentence or are accepted; every reader that is fuzzed reads a few mutations of its seeds."""

from __future__ import annotations

import dataclasses
import itertools
import os
import subprocess
import sys
import warnings
from pathlib import Path
from random import Random
from typing import Any

import pytest

from megatron_memory_estimator import ConfigError
from megatron_memory_estimator.inputs.hf import load as hf_load
from megatron_memory_estimator.inputs.shell.script import read_script
from megatron_memory_estimator.service.answers import answered

from .fuzz import seeds
from .fuzz.hunt import Pool, cases, hunted
from .fuzz.known import KNOWN, QWEN, request
from .fuzz.mutate import Words, smaller
from .fuzz.readers import READERS
from .fuzz.watch import Outcome, Reader, observed

ONE = [(name, case, sentence) for name, known in KNOWN.items() for case, sentence in known]
SLOW = 30.0
"""CPU seconds of a case on a machine that does other things too."""
FIRST = 90


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that is not in the catalogue is nowhere."""

    def nowhere(model: str) -> Any:
        raise ConfigError("is neither a file nor a Hub id")

    monkeypatch.setattr(sys.modules[hf_load.__module__], "_from_hub", nowhere)


@pytest.mark.parametrize(("name", "case", "sentence"), ONE, ids=lambda value: ascii(value)[:30])
def test_what_once_crashed(name: str, case: Any, sentence: str, tmp_path: Path) -> None:
    outcome, found = observed(dataclasses.replace(READERS[name], seconds=SLOW), case, tmp_path)
    assert found is None
    assert outcome.accepted == (not sentence)
    assert any(sentence in one for one in outcome.said) or outcome.accepted


def test_a_script_that_a_script_writes_and_starts_keeps_its_gpus() -> None:
    script = f"cat > job.sh <<EOF\ntorchrun --nproc-per-node 8 pretrain_gpt.py {seeds.SMALL}\nEOF\njob.sh"
    assert read_script(script).num_gpus == 8


def test_a_plan_takes_the_batch_of_its_run_under_every_name() -> None:
    script = f"torchrun --nproc-per-node 8 pretrain_gpt.py {seeds.SMALL} --global-batch-size 16"
    for given in ({"model": QWEN, "settings": {"global-batch-size": 16}}, {"text": script}):
        arguments = {"num_gpus": 8, "axes": {"tp": "1", "pp": "1", "cp": "1"}, "top": 1, **given}
        found = answered({**request("plan", **arguments, detail="full"), "folder": None, "seconds": SLOW})["answer"]
        assert not any("global_batch_size not given" in one for one in found["assumptions"])
        assert found["plans"][0]["layout"]["data_parallel_size"] == 8


@pytest.mark.parametrize("name", list(READERS))
def test_the_first_cases_of_a_hunt(name: str, tmp_path: Path) -> None:
    reader = dataclasses.replace(READERS[name], seconds=SLOW)
    pool, accepted = Pool(), 0
    for case in itertools.islice(cases(reader, "first", pool), FIRST):
        outcome, found = observed(reader, case, tmp_path)
        assert found is None
        accepted += outcome.accepted
        pool.add(case, outcome)
    assert accepted and pool.refused
    again = [list(itertools.islice(cases(reader, "first", Pool()), FIRST)) for _ in range(2)]
    assert repr(again[0]) == repr(again[1])


FAULTS = ("raise", "warn", "open", "start", "long", "control", "change")


def faults() -> list[Any]:
    """Cases of a reader that does what readers must not do."""
    return ["good"]


def any_fault(random: Random, case: Any, other: Any, words: Words) -> Any:
    """A fault, in a case that holds more than it needs."""
    return ["padding", "padding", random.choice((*FAULTS * 3, "hang", "leave"))]


def read_fault(case: Any, folder: Path) -> Outcome:
    """Do what the case says."""
    word = case[-1] if isinstance(case, list) and case else "good"
    if word == "raise":
        raise KeyError("x")
    if word == "warn":
        warnings.warn("odd", RuntimeWarning, stacklevel=1)
    if word == "open":
        with open("/etc/hostname") as file:
            file.read()
    if word == "start":
        subprocess.run(["true"], check=True)
    if word == "change":
        case.append("x")
    if word == "leave":
        os._exit(3)
    while word == "hang":
        pass
    return Outcome(False, ({"long": "x" * 501, "control": "\x1b[31m"}.get(word, ""),))


def test_a_hunt_finds_every_fault() -> None:
    reader = Reader("faults", faults, any_fault, read_fault, seconds=0.1)
    kinds = {one.kind for one in hunted(reader, "126", 0.045).findings}
    assert kinds == {"exception", "event", "warning", "message", "input", "hang", "the process ended with 3"}


def test_a_finding_is_made_smaller() -> None:
    assert ["padding", "raise"] in list(smaller(["padding", "padding", "raise"]))
    assert [one for one in smaller({"b": 1, "a": "xy"}) if len(one) == 1] == [{"a": "xy"}, {"b": 1}]
    assert {"a": "x"} in list(smaller({"a": "xy"}))
