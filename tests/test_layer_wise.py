"""The layer-wise distributed optimizer (Muon): whole parameters dealt to ranks by hand (Megatron-LM `layer_wise_optimizer.py`)."""

from __future__ import annotations

from typing import Any

import pytest

from megatron_memory_estimator import estimate
from megatron_memory_estimator.states.buffers import is_muon_managed
from megatron_memory_estimator.states.layer_wise import Deal, packed, ping_pong, sizes
from megatron_memory_estimator.tape.tensor import Dim, Param

from .helpers import small_job

ITEMS = [(100, True), (70, False), (50, True), (30, False), (20, False)]
"""Elements of parameters, and whether they are matrices of Muon's."""


def test_ping_pong() -> None:
    """Smallest first to ranks 0 1 1 0 0: 20, 70 and 100 on rank 0. The rank with most state counts: a matrix has one moment, not two."""
    assert ping_pong(ITEMS, 2) == Deal(270, 190, 100)
    assert ping_pong(ITEMS, 1) == Deal(270, 270, 150)
    assert ping_pong([(100, True), (90, False)], 2) == Deal(190, 90, 0), "90 * (1 + 2) are more than 100 * (1 + 1)"
    assert ping_pong(ITEMS, 8) == Deal(270, 70, 0), "70 * 3 are more than 100 * 2"


def test_packed() -> None:
    """Largest first onto the emptiest shard, each aligned to 64: 128 + 64 + 64 on the first, 128 + 64 on the second."""
    assert packed(ITEMS, 2) == Deal(2 * 256, 256, 150)
    assert packed(ITEMS, 1) == Deal(512, 448, 150), "448 elements are padded to a multiple of 128"
    assert packed(ITEMS, 3) == Deal(3 * 256, 192, 100), (
        "100, 20; 70; 50, 30: of three ranks a shard ends at a multiple of 128"
    )
    assert packed([(128, True), (100, False)], 2) == Deal(2 * 128, 128, 0), "of two full shards that with two moments"
    assert packed([(300, False)], 4) == Deal(4 * 320, 320, 0), "of four at one of 64"


def test_every_copy_of_a_parameter_is_dealt_by_itself() -> None:
    wide, bias = Param("wide", (Dim("out", 8), Dim("in", 4)), copies=2), Param("bias", (Dim("out", 8),))
    assert sizes([([bias, wide], 2), ([bias], 1)], {"wide"}) == [(32, True)] * 4 + [(8, False)] * 3


@pytest.mark.parametrize(
    ("name", "shape", "managed"),
    [
        ("mlp.linear_fc1.weight", (8, 4), True),
        ("mlp.linear_fc1.bias", (8,), False),
        ("mixer.conv1d.weight", (8, 1, 4), False),
        ("embedding.word_embeddings.weight", (8, 4), False),
        ("output_layer.weight", (8, 4), False),
        ("mixer.in_proj.weight", (8, 4), False),
    ],
)
def test_matrices_of_muon(name: str, shape: tuple[int, ...], managed: bool) -> None:
    param = Param(name, tuple(Dim("n", size) for size in shape))
    assert is_muon_managed(param) is managed
    assert not is_muon_managed(param._replace(matrix=False))


H, LAYER = 1024, 1024 * (1536 + 1024 + 8192 + 4096)
MATRICES, REST = 4 * LAYER, 2 * 32000 * H + (2 * 4 + 1) * H


def state(num_gpus: int, **settings: Any) -> dict[str, int]:
    rank = estimate(small_job(num_gpus, optimizer="muon", **settings)).stages[0].rank
    return {s.tensor: s.nbytes for s in rank.states if s.part == "optimizer"}


def test_one_momentum_for_matrices_and_two_moments_for_the_rest() -> None:
    assert state(1) == {
        "main_param": 4 * (MATRICES + REST), "muon momentum_buffer": 4 * MATRICES, "exp_avg": 4 * REST, "exp_avg_sq": 4 * REST,
    }  # fmt: skip


def test_who_has_the_embeddings() -> None:
    """The two embeddings of 32,000 * 1,024 are the largest of 27 parameters: packed, one on each of two ranks, and half of everything
    else within a weight; dealt smallest first, the 26th and the 27th go to the same rank (1 1 of 0 1 1 0 0 1 1 ...)."""
    settings: dict[str, Any] = {"use_distributed_optimizer": True, "use_layer_wise_param_layout": True}
    found = state(2, **settings, megatron_core_version="0.17")
    assert found["exp_avg"] == pytest.approx(4 * 32000 * H, rel=1e-3)
    assert found["muon momentum_buffer"] == pytest.approx(4 * MATRICES / 2, abs=4 * 8192 * H)
    older = state(2, **settings, megatron_core_version="0.16")
    assert older["exp_avg"] == pytest.approx(4 * 2 * 32000 * H, rel=1e-3)
    settings["use_layer_wise_param_layout"] = False
    assert state(2, **settings, megatron_core_version="0.17") == older
