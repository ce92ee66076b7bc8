"""Of a space that is too large without NumPy a part is searched: what is given stays, the part is said, its plans are those of the part."""

from __future__ import annotations

import pytest

from megatron_memory_estimator import TrainingJob
from megatron_memory_estimator.errors import NumPyError
from megatron_memory_estimator.planner import search as searching
from megatron_memory_estimator.planner.planning import plan
from megatron_memory_estimator.planner.space.axes import AXES
from megatron_memory_estimator.planner.space.defaults import completed
from megatron_memory_estimator.planner.space.thinned import kept_of, thinned
from megatron_memory_estimator.planner.space.words import space_of
from megatron_memory_estimator.service.answers import answered

GIVEN = {"tensor_model_parallel_size": "1,2", "pipeline_model_parallel_size": "2,4", "context_parallel_size": "1"}


def job() -> TrainingJob:
    return TrainingJob.from_hf("Qwen/Qwen3-8B", 16, global_batch_size=128)


def without_numpy(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(searching, "_has_numpy", lambda: False)
    monkeypatch.setattr(searching, "MOST", most)


def test_a_part_is_searched_as_if_its_axes_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    without_numpy(monkeypatch, 500)
    part = plan(job(), GIVEN)
    assert part.found.legal <= 500
    said = next(one for one in part.assumptions if "without NumPy" in one)
    assert part.found.thinned == (said,) and "legal layouts" in said
    values = {name: ",".join(map(str, getattr(part.found.space, name))) for name in AXES}
    asked = {
        name: values[name] for name in (*GIVEN, "virtual_pipeline_model_parallel_size", "micro_batch_size", "recompute")
    }
    again = plan(job(), asked)
    assert not again.found.thinned and again.found.legal == part.found.legal
    assert [one.step for one in again.found.plans] == [one.step for one in part.found.plans]


def test_what_is_given_stays_and_what_cannot_be_thinned_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    without_numpy(monkeypatch, 500)
    found = plan(job(), {**GIVEN, "recompute": "none,mlp,full"}).found
    assert found.space.recompute == ("none", "mlp", "full") and found.space.tensor_model_parallel_size == (1, 2)
    without_numpy(monkeypatch, 3)
    with pytest.raises(NumPyError, match="a space of at most 3 legal layouts is searched, and this one has"):
        plan(job(), {**GIVEN, "recompute": "none,mlp,full", "micro_batch_size": "1,2"})


def test_values_that_seldom_win_go_first() -> None:
    whole = completed(space_of(job(), {}), job())
    little = thinned(whole, (), job().model, 10_000, 5_000)
    assert kept_of(whole, little) == "vpp 1,2,3,6"  # of 36 layers on 2, 3, 4, ... stages
    assert thinned(whole, (), job().model, 100, 5_000) == whole
    less = thinned(whole, ("virtual_pipeline_model_parallel_size",), job().model, 10_000, 5_000)
    assert kept_of(whole, less) == "recompute none,mlp,full", "no MoE, no MLA"


def test_a_server_and_a_page_do_not_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    without_numpy(monkeypatch, 3)
    asked = {
        "model": "Qwen/Qwen3-8B",
        "num_gpus": 16,
        "axes": {**GIVEN, "recompute": "none,mlp,full", "micro_batch_size": "1,2"},
    }
    found = answered({"tool": "plan", "arguments": asked, "folder": None, "seconds": 60, "hub": False})
    assert (
        found["error"].startswith("without NumPy a space of at most 3 legal layouts")
        and "pip install" not in found["error"]
    )
