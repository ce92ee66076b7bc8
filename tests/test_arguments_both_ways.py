"""Arguments of Megatron-LM and settings are one table read both ways: a job's settings as arguments, read again, are the same."""

from __future__ import annotations

from random import Random

import pytest

from megatron_memory_estimator import EstimatorError, TrainingJob
from megatron_memory_estimator.inputs.catalog import entries
from megatron_memory_estimator.inputs.megatron.derive import DERIVED, RENAMED, ROWS, Job, derive, said
from megatron_memory_estimator.inputs.megatron.job import job_from_args
from megatron_memory_estimator.inputs.megatron.table import arguments
from megatron_memory_estimator.inputs.setting_names import known_settings
from megatron_memory_estimator.planner.launch import differing, megatron_lm, settings_of

from .random_jobs import random_job

BASE = {
    "num_layers": 8,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "seq_length": 2048,
    "max_position_embeddings": 4096,
    "micro_batch_size": 1,
    "vocab_size": 32000,
    "tokenizer_type": "NullTokenizer",
}
SAID = tuple(dict.fromkeys(name for row in ROWS if row.settings for name in row.arguments))
"""Arguments of rows that are said again."""


def test_rows_name_arguments_and_settings_that_there_are() -> None:
    assert set(arguments()[1]) | set(arguments()[0]) >= DERIVED
    assert {*RENAMED, *(name for row in ROWS for name in row.settings)} <= set(known_settings())


@pytest.mark.parametrize("name", [*SAID, *RENAMED.values(), "position_embedding_type", "moe_layer_freq", "optimizer"])
def test_an_argument_is_said_as_it_was_read(name: str) -> None:
    argument = arguments()[1][name]
    values = {
        "attention_backend": ("fused", "flash", "unfused"),
        "num_query_groups": (4,),
        "optimizer": ("sgd", "muon"),
        "ckpt_format": ("torch", "torch_dist"),
    }
    others = {"moe_layer_freq": ("[1,0,1,0,1,0,1,0]",), "position_embedding_type": ("rope", "learned_absolute")}
    words = {**values, **others}.get(name, (True, False) if argument.kind != "Store" else (2,))
    for value in words:
        near = (
            {"num_experts": 8}
            if name == "moe_layer_freq"
            else {"group_query_attention": True}
            if "query" in name
            else {}
        )
        gpus = {"pipeline_model_parallel_size": 4} if name in RENAMED.values() and name != "num_experts" else {}
        given = {**BASE, **near, **gpus, name: value}
        job = job_from_args(given, 16, {})
        found = dict(said(Job(job.model, job.layout, job.training), settings_of(job)))
        again = derive({key: each for key, each in found.items() if each is not None})
        before = derive(given)
        owned = {one for row in ROWS if name in row.arguments for one in row.settings}
        for setting in owned | ({name} & set(known_settings())):
            if setting in before:
                assert again.get(setting) == before[setting] or list(again[setting]) == list(before[setting]), setting


@pytest.mark.parametrize("start", range(0, 120, 20))
def test_settings_of_random_jobs_are_said_and_read(start: int) -> None:
    read = 0
    for seed in range(start, start + 20):
        drawn = random_job(Random(seed))
        try:
            settings = drawn.settings
            if drawn.name:
                job = TrainingJob.from_hf(drawn.name, drawn.num_gpus, **settings)
            else:
                job = TrainingJob.from_config(settings, drawn.num_gpus)
            changed = changed_when_read(job)
        except EstimatorError:
            continue
        assert not changed, seed
        read += 1
    assert read >= 5


def changed_when_read(job: TrainingJob) -> set[str]:
    """The settings of a job that are others when its arguments are read again, with those that have no argument beside them."""
    launch = megatron_lm(job)
    beside = {name: value for name, value in launch.beside.items() if value is not None}
    again = job_from_args(launch.words(), job.layout.world_size, {"gpu": job.gpu.name, **beside}, rules=False)
    return {name for name, value in differing(job, again).items() if value is not None} - {"world_size"}


@pytest.mark.parametrize("name", list(entries()))
def test_every_model_of_the_catalogue_is_said_and_read(name: str) -> None:
    assert not changed_when_read(TrainingJob.from_hf(name, 8))
