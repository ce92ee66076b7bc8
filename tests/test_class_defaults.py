"""Configurations that nobody chose: the defaults of every causal language model of transformers 5.24.0 that is read here. Their classes,
built on meta tensors, have exactly the parameters that are counted; two that look like Llama and are not are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from megatron_memory_estimator.errors import ConfigError
from megatron_memory_estimator.inputs.hf.convert import convert
from megatron_memory_estimator.inputs.resolve import job_from_parts
from megatron_memory_estimator.modules.counts import count_parameters

from .helpers import FACTS

RECORDS: list[dict[str, Any]] = [json.loads(line) for line in (FACTS / "class_defaults.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: str(record["model_type"]))
def test_parameters_are_those_of_the_class(record: dict[str, Any]) -> None:
    name = record["model_type"]
    if refused := record.get("refused"):
        with pytest.raises(ConfigError, match=refused):
            convert(record["config"], name, name)
        return
    model = job_from_parts(convert(record["config"], name, name), None, {}, habits=True).model
    assert count_parameters(model).total == record["parameters"]


def test_there_are_more_than_fifty() -> None:
    assert len(RECORDS) == 55
