"""The layer-wise distributed optimizer (Muon): whole parameters dealt to ranks by hand (Megatron-LM `layer_wise_optimizer.py`)."""

from __future__ import annotations

from typing import Any

import pytest

from megatron_memory_estimator import LayoutError, TrainingJob, estimate
from megatron_memory_estimator.estimator import Stage
from megatron_memory_estimator.job.layout import Layout
from megatron_memory_estimator.job.training import Training
from megatron_memory_estimator.report.document import owned_layers, owned_lines
from megatron_memory_estimator.states.buffers import Dealt, Whole, grid, is_muon_managed, packed, ping_pong
from megatron_memory_estimator.tape.tensor import Dim, Param
from megatron_memory_estimator.validation.replay import job_of
from megatron_memory_estimator.validation.runs import Run

from .helpers import records, small_job


def items(*sizes: int, alone: int = -1) -> list[Whole]:
    """Parameters in registration order."""
    return [Whole("w", 0, place, numel, 0, numel == alone) for place, numel in enumerate(sizes)]


def shards(found: Dealt) -> list[list[int]]:
    return [[item.numel for item in owned] for owned in found]


def test_ping_pong() -> None:
    """Smallest first to ranks 0 1 1 0 0."""
    assert shards(ping_pong(items(100, 70, 50, 30, 20), 2)) == [[20, 70, 100], [30, 50]]
    assert shards(ping_pong(items(100, 70), 4)) == [[70], [100], [], []]
    assert shards(ping_pong(items(7, 7, 7, 7, 7, 7), 3)) == [[7, 7]] * 3
    adam, muon = Whole("adam", 0, 0, 64, 1), Whole("muon", 0, 1, 64, 0)
    assert ping_pong([adam, muon], 2) == ((muon,), (adam,)), "of equal sizes those of Muon's group come first"


def test_one_bucket() -> None:
    """Largest first onto the emptiest shard, each start aligned to 64, the shards' ends to lcm(64, lcm(ranks, 128) / ranks)."""
    numel, found = packed(items(100, 70, 50, 30, 20), 2, None)
    assert (numel, shards(found)) == (2 * 256, [[100, 30, 20], [70, 50]]), (
        "ends 100, 70; 50 at 128, 30 at 128; 20 at 192: 212"
    )
    assert packed(items(100, 70, 50, 30, 20), 1, None)[0] == 512, "starts 0, 128, 256, 320, 384: 404"
    assert packed(items(300), 4, None)[0] == 4 * 320
    assert packed(items(300), 4, None, busbw=True)[0] == 4 * 16384, "65,536 elements over four shards"


def test_buckets() -> None:
    """Buckets are filled from the last parameter on, and hold 0.9 times the ranks times their largest, so that shards are not empty."""
    numel, found = packed(items(640, 640, 640, 640), 2, 1280)
    assert (numel, shards(found)) == (2 * 2 * 640, [[640, 640]] * 2)
    numel, found = packed(items(640, 640, 640, 640), 2, 64)
    assert numel == 2 * 2 * 640, "one parameter is 640 of the 1,152 that two ranks need"
    assert shards(packed(items(64, 640), 2, 64)[1]) == [[640], [64]]
    assert shards(packed(items(64, 640), 1, 64)[1]) == [[640, 64]]
    assert packed(items(64, 640), 1, 64)[0] == 640 + 128, "two buckets: the first is full with its first parameter"
    assert packed(items(128, 256, 64, alone=256), 2, None)[0] == 2 * (64 + 256 + 128), (
        "a shared embedding is alone in each shard"
    )


def test_grid() -> None:
    """A GPU's place: tp first, then cp and dp; for experts etp, ep, then expert dp (`parallel_state.py`)."""
    assert grid(Layout(world_size=8)) == [(rank, rank) for rank in range(8)]
    layout = Layout(world_size=8, expert_model_parallel_size=4, context_parallel_size=2)
    assert grid(layout) == [(rank, rank // 4) for rank in range(8)]
    layout = Layout(
        world_size=8, tensor_model_parallel_size=4, expert_model_parallel_size=2, expert_tensor_parallel_size=1
    )
    assert grid(layout) == [(0, 0), (0, 1), (1, 2), (1, 3)]


@pytest.mark.parametrize(
    ("name", "shape", "managed", "first"),
    [
        ("mlp.linear_fc1.weight", (8, 4), True, True),
        ("mlp.linear_fc1.bias", (8,), False, True),
        ("mixer.conv1d.weight", (8, 1, 4), False, True),
        ("embedding.word_embeddings.weight", (8, 4), False, True),
        ("embedding.position_embeddings.weight", (8, 4), True, True),
        ("output_layer.weight", (8, 4), False, False),
    ],
)
def test_matrices_of_muon(name: str, shape: tuple[int, ...], managed: bool, first: bool) -> None:
    param = Param(name, tuple(Dim("n", size) for size in shape))
    assert is_muon_managed(Training(), param, first_chunk=first) is managed
    assert not is_muon_managed(Training(), param._replace(matrix=False), first_chunk=first)


@pytest.mark.parametrize(
    ("name", "since"),
    [("mixer.in_proj.weight", ("0.19", "0.20")), ("embedding.word_embeddings.weight", ("0.18", "0.19"))],
)
def test_marks_that_came_later(name: str, since: tuple[str, str]) -> None:
    """Mamba's in_proj, and the copy of the embedding on a stage of MTP, were matrices of Muon's."""
    param = Param(name, (Dim("out", 8), Dim("in", 4)))
    before, after = (is_muon_managed(Training(megatron_core_version=v), param, first_chunk=False) for v in since)
    assert before and not after


H, LAYER = 1024, 1024 * (1536 + 1024 + 8192 + 4096)
MATRICES, REST = 4 * LAYER, 2 * 32000 * H + (2 * 4 + 1) * H
LAYER_WISE: dict[str, Any] = {"optimizer": "muon", "use_distributed_optimizer": True}


def stage(num_gpus: int, **settings: Any) -> Stage:
    return estimate(small_job(num_gpus, **{**LAYER_WISE, **settings})).stages[0]


def state(num_gpus: int, **settings: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for s in stage(num_gpus, **settings).rank.states:
        if s.part == "optimizer" and s.since != "optimizer":
            found[s.tensor] = found.get(s.tensor, 0) + s.nbytes
    return found


def test_one_momentum_for_matrices_and_two_moments_for_the_rest() -> None:
    assert state(1, use_distributed_optimizer=False) == {
        "main_param": 4 * (MATRICES + REST), "muon momentum_buffer": 4 * MATRICES, "exp_avg": 4 * REST, "exp_avg_sq": 4 * REST,
    }  # fmt: skip


OLD = {"megatron_core_version": "0.17"}


def test_ping_pong_of_a_model() -> None:
    """Smallest first: nine norms, four linear_proj, four linear_qkv, four fc2, four fc1, two embeddings. Of the ranks 0 1 1 0 ... the 27
    parameters give the last embedding (27th) to rank 1, as the 26th: both embeddings, and one norm less than the other rank."""
    full = state(2, **OLD)
    assert full["exp_avg"] == 4 * (2 * 32000 * H + 4 * H)
    assert full["muon momentum_buffer"] == 4 * MATRICES // 2
    other = state(2, **OLD, data_parallel_rank=0)
    assert other["exp_avg"] == 4 * 5 * H
    assert full["main_param"] + other["main_param"] == 4 * (MATRICES + REST)
    unpadded = [buffer.numel - buffer.numel_unpadded for buffer in stage(2, **OLD).rank.buffers]
    assert unpadded == [0]
    assert state(2, use_layer_wise_param_layout=False) == full
    assert state(2, megatron_core_version="0.16") == full


def test_layout_of_a_model() -> None:
    """Since 0.18 the matrices have a buffer of their own, the last layer first; everything else is shared by elements."""
    found = stage(3)
    dense, matrices = found.rank.buffers
    assert (dense.group, matrices.group) == ("dense", "dense matrices")
    assert dense.numel_unpadded == REST and dense.owned == dense.numel // 3
    assert matrices.numel_unpadded == MATRICES
    loads = [sum(item.numel for item in owned) for owned in matrices.dealt]
    fc1, fc2, qkv, proj = 8192 * H, 4096 * H, 1536 * H, 1024 * H
    # in units of 1,024 * H: fc1 8 8 8 and 16 8 8, fc2 16 12 12 and 16 16 16, qkv 17.5 each and 19 17.5 17.5, proj 19 19.5 19.5
    assert loads == [2 * fc1 + 2 * qkv, fc1 + 2 * fc2 + qkv + 2 * proj, fc1 + 2 * fc2 + qkv + 2 * proj]
    assert matrices.numel == 3 * max(loads) > MATRICES
    assert matrices.owned == matrices.owned_matrices == max(loads)
    assert sum(loads) == MATRICES
    assert state(3)["muon momentum_buffer"] == 4 * max(loads)


def test_what_a_rank_owns_is_said() -> None:
    found = stage(3)
    dense, matrices = found.rank.buffers
    assert owned_layers(found.rank, dense) is None
    assert owned_layers(found.rank, matrices) == {
        "mlp.linear_fc1.weight": [2], "mlp.linear_fc2.weight": [1, 3],
        "self_attention.linear_qkv.weight": [2], "self_attention.linear_proj.weight": [1, 3],
    }  # fmt: skip
    assert list(owned_lines(found.rank)) == [
        "Of dense matrices, data-parallel rank 1 of 3 owns 6 of 16 parameters:",
        "  mlp.linear_fc1.weight: layer 2",
        "  mlp.linear_fc2.weight: layers 1, 3",
        "  self_attention.linear_qkv.weight: layer 2",
        "  self_attention.linear_proj.weight: layers 1, 3",
    ]
    old = stage(2, **OLD)
    assert (owned_layers(old.rank, old.rank.buffers[0]) or {})["output_layer.weight"] == [None]


def test_a_measured_rank_is_compared_with_itself() -> None:
    """The last rank of a run, though another is the fullest."""
    job = small_job(2, **LAYER_WISE, **OLD)
    args = {"num_layers": 4, "hidden_size": H, "num_attention_heads": 8, "seq_length": 1024, "max_position_embeddings": 1024,
            "micro_batch_size": 1, "bf16": True, "optimizer": "dist_muon"}  # fmt: skip
    settings = {"padded_vocab_size": 32000, "megatron_core_version": "0.16"}
    last = job_of(Run("one", "H100", 4, {}, args=args, settings=settings, rank="last"))
    assert (last.training.data_parallel_rank, job.training.data_parallel_rank) == (3, None)
    assert (
        job_of(Run("one", "H100", 4, {}, args=args, settings=settings, rank="any")).training.data_parallel_rank is None
    )


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"data_parallel_rank": 2}, "data_parallel_rank=2 must be below the size of the data-parallel group, 2"),
        (
            {"data_parallel_rank": 0, "optimizer": "adam"},
            "data_parallel_rank needs optimizer=muon with use_distributed_optimizer",
        ),
        ({"num_distributed_optimizer_instances": 2}, "num_distributed_optimizer_instances=1"),
        (
            {
                "num_moe_experts": 4,
                "expert_model_parallel_size": 2,
                "add_bias_linear": True,
                "moe_token_dispatcher_type": "alltoall",
            },
            "turn use_layer_wise_param_layout off",
        ),
    ],
)
def test_what_it_refuses(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(LayoutError, match=sentence):
        stage(2, **settings)


@pytest.mark.parametrize("record", records("owners.json"), ids=lambda record: str(record["name"]))
def test_owners_are_those_of_the_real_classes(record: dict[str, Any]) -> None:
    """How many parameters and elements every data-parallel rank owns, and with the layout the elements of every buffer."""
    settings = {
        **record["config"], **LAYER_WISE, "overlap_grad_reduce": True, "seq_length": 1024, "gpu": "H100",
        "use_layer_wise_param_layout": record["layout"], "megatron_core_version": record["megatron_core"],
        "global_batch_size": 4 * record["num_gpus"],
    }  # fmt: skip
    found = estimate(TrainingJob.from_config(settings, record["num_gpus"])).stages[record["stage"]].rank.buffers
    for group, ranks in record["owners"].items():
        dealt = [buffer.dealt for buffer in found if buffer.dealt and buffer.expert is (group == "expert")]
        owned = [[item for one in dealt for item in one[rank]] for rank in range(len(ranks))]
        assert [[len(items), sum(item.numel for item in items)] for items in owned] == ranks
    assert "buffers" not in record or sorted(buffer.numel for buffer in found) == record["buffers"]
