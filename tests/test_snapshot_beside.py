"""Snapshots beside the runs that made them: the real classes' blocks are our tensors, and planted differences are named.

The samples are of the real classes of Megatron-Core 0.19.2 and TransformerEngine 2.20.2, without GPU kernels: cuBLAS workspaces and the
attention mask of the data loader are not in them.
"""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from megatron_memory_estimator import TrainingJob, estimate
from megatron_memory_estimator.cli import main
from megatron_memory_estimator.evidence.account import Account, account
from megatron_memory_estimator.evidence.beside import beside, closer
from megatron_memory_estimator.evidence.snapshot import read_snapshot
from megatron_memory_estimator.evidence.trials import told
from megatron_memory_estimator.report.snapshot import ran

from .helpers import FACTS

MIB = 2**20
DENSE = """--num-layers 4 --hidden-size 1536 --num-attention-heads 12 --group-query-attention --num-query-groups 4 --kv-channels 128
    --ffn-hidden-size 4096 --swiglu --normalization RMSNorm --disable-bias-linear --attention-dropout 0 --hidden-dropout 0
    --vocab-size 50000 --seq-length 2048 --max-position-embeddings 2048 --bf16 --micro-batch-size 1 --global-batch-size 8
    --use-distributed-optimizer --position-embedding-type rope --untie-embeddings-and-output-weights"""
MOE = """--num-layers 3 --hidden-size 1024 --num-attention-heads 8 --group-query-attention --num-query-groups 2 --kv-channels 128
    --ffn-hidden-size 2816 --swiglu --normalization RMSNorm --disable-bias-linear --attention-dropout 0 --hidden-dropout 0 --qk-layernorm
    --num-experts 16 --moe-router-topk 4 --moe-ffn-hidden-size 512 --moe-layer-freq [0,1,1] --moe-shared-expert-intermediate-size 1024
    --moe-grouped-gemm --moe-permute-fusion --moe-token-dispatcher-type alltoall --moe-router-load-balancing-type aux_loss
    --moe-aux-loss-coeff 0.001 --expert-model-parallel-size 4 --expert-tensor-parallel-size 1 --vocab-size 32000 --seq-length 2048
    --max-position-embeddings 2048 --bf16 --micro-batch-size 1 --global-batch-size 8 --use-distributed-optimizer
    --position-embedding-type rope --untie-embeddings-and-output-weights"""
FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
SHARDED = "--tensor-model-parallel-size 2 --sequence-parallel"


def sample(name: str) -> bytes:
    return gzip.decompress((FACTS / "snapshots" / f"{name}.pickle.gz").read_bytes())


def seen(name: str, change: Callable[[dict[str, Any]], None] | None = None) -> Account:
    data = sample(name)
    if change is not None:
        values = pickle.loads(data)
        change(values)
        data = pickle.dumps(values, 4)
    return account(read_snapshot(data))


def run(words: str, num_gpus: int = 1, **settings: Any) -> TrainingJob:
    return TrainingJob.from_megatron_args(words.split(), num_gpus, **settings)


@pytest.mark.parametrize(
    ("name", "words", "num_gpus"),
    [
        ("mcore_dense", DENSE, 1),
        ("mcore_dense_oom", DENSE, 1),
        ("mcore_full_recompute_tp2", f"{DENSE} {SHARDED} {FULL}", 2),
    ],
    ids=["dense", "dense_oom", "full_recompute_tp2"],
)
def test_the_blocks_of_the_real_classes_are_our_tensors(name: str, words: str, num_gpus: int) -> None:
    """All but scalars; of ours only what the sample cannot have: workspaces of GEMMs, the mask of the data loader."""
    found, job = seen(name), run(words, num_gpus)
    one = beside(found, estimate(job))
    assert one.explained > 0.9999 and one.agreed + sum(left.nbytes for left in one.only_seen) == one.seen
    assert one.agreed + sum(left.nbytes for left in one.only_predicted) == pytest.approx(one.predicted, rel=1e-4)
    large = {left.tensor for left in one.only_predicted if left.nbytes >= MIB}
    assert large == {
        "torch cuBLAS workspaces (forward and autograd thread)",
        "TE cuBLAS workspace",
        "batch.attention_mask",
    }
    better = closer(found, job, one)
    assert one.ratio is None and (better is None or better.settings == {"create_attention_mask_in_dataloader": False})


def test_what_memory_ran_out_at_is_named() -> None:
    """The request of 2048 x 50,048 fp32 logits was not served: it is the softmax of the loss."""
    one = ran(seen("mcore_dense_oom"), run(DENSE))
    assert one.beside.asked == "output.cross_entropy.softmax"
    assert "memory ran out at output.cross_entropy.softmax" in one.hints
    assert one.beside.seen == 5_371_972_944 + 409_993_216


NONE = {
    "recompute_granularity": None,
    "recompute_method": None,
    "recompute_num_layers": None,
    "recompute_modules": None,
}


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ("--no-bias-swiglu-fusion", {"bias_activation_fusion": True}),
        ("--recompute-activations", NONE),
        (FULL, NONE),
        ("--cross-entropy-loss-fusion --cross-entropy-fusion-impl native", {"cross_entropy_loss_fusion": False}),
        ("--make-vocab-size-divisible-by 8192", {"make_vocab_size_divisible_by": 64}),
        ("--no-rope-fusion", {"apply_rope_fusion": True}),
        ("--no-gradient-accumulation-fusion", {"gradient_accumulation_fusion": True}),
    ],
)
def test_a_setting_that_differs_is_named(words: str, settings: dict[str, Any]) -> None:
    """The run is told otherwise than it was: the setting that it had closes the gap, or one with the same bytes."""
    found, job = seen("mcore_dense"), run(f"{DENSE} {words}")
    one = beside(found, estimate(job))
    better = closer(found, job, one)
    assert better is not None, one
    peaks = {estimate(told(job, some)).peak_stage.peak_allocated_bytes for some in (better.settings, settings)}
    assert len(peaks) == 1, better.settings
    assert better.beside.explained > one.explained or better.beside.predicted < one.predicted


PLANTED = {
    "block2": "with --recompute-granularity full --recompute-method block --recompute-num-layers 2 the run explains 100.0%",
    "core_attn": "with --recompute-granularity selective --recompute-modules core_attn the run explains 100.0%",
    "full": "with --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 the run explains 100.0%",
    "mlp": "with --recompute-granularity selective --recompute-modules mlp the run explains 100.0%",
    "fusion_off": "with --no-bias-activation-fusion the run explains 100.0%",
    "rope_off": "with --no-apply-rope-fusion the run explains 100.0%",
    "gradfusion_off": "with --no-gradient-accumulation-fusion the run explains 100.0%",
    "teloss": "with --cross-entropy-loss-fusion --cross-entropy-fusion-impl te the run explains 100.0%",
    "pair": "with --recompute-granularity selective --recompute-modules mlp --no-apply-rope-fusion the run explains 100.0%",
    "inflight2": "tensors of the run once more: another microbatch is in flight",
    "mbs2": "2 times tensors of the run: the microbatch had so many times the tokens",
    "seq1024": "0.5 times tensors of the run: the microbatch had so many times the tokens",
    "seq3072": "1.5 times tensors of the run: the microbatch had so many times the tokens",
    "tp2": "param buffers hold 127.42 M parameters, those of the run 254.42 M",
    "vocab60000": "param buffers hold 285.10 M parameters, those of the run 254.42 M",
    "layernorm_kind": "param buffers hold 254.44 M parameters, those of the run 254.42 M",
    "late": "",
    "expandable": "",
    "moe_act": "with --recompute-granularity selective --recompute-modules moe_act the run explains 100.0%",
    "moe_moe": "with --recompute-granularity selective --recompute-modules moe the run explains 100.0%",
    "moe_late": "tensors of the run once more: another microbatch is in flight",
    "moe_allgather": "with --moe-token-dispatcher-type allgather the run explains 100.0%",
}
"""What is said of snapshots of the real classes that have something else than the run that is given."""


@pytest.mark.parametrize("name", PLANTED)
def test_a_difference_of_the_real_classes_is_named(name: str) -> None:
    """The real classes with a setting or two that the run does not have; recording late or in expandable segments is no difference."""
    job = run(MOE, 4, router_imbalance=1.0) if name.startswith("moe") else run(DENSE)
    one = ran(seen(f"planted_{name}"), job)
    if not PLANTED[name]:
        assert one.beside.explained > 0.9999 and one.hints == []
        return
    assert any(PLANTED[name] in hint for hint in one.hints), one.hints
    assert len(one.hints) == 1


@pytest.mark.parametrize(("name", "nbytes"), [("leak", 6 * 20_000_000), ("stray", 1_200_000_000)])
def test_what_is_not_of_the_run_stands_alone_with_its_line(name: str, nbytes: int) -> None:
    """The real classes of one layer, with tensors of 20 MB that a list keeps of each microbatch (six of them at the peak), and with one
    of 1.2 GB; the function makes some kilobytes of the batch, too."""
    one = ran(seen(f"planted_{name}"), run(DENSE.replace("--num-layers 4", "--num-layers 1")))
    (left,) = (group for group in one.beside.only_seen if group.part == "not ours")
    assert left.where == "/opt/megatron-lm/pretrain_gpt.py:1 forward_step"
    assert nbytes <= left.nbytes <= nbytes + 100_000


def test_another_length_is_one_ratio() -> None:
    """2,048 tokens are 4/3 of the 1,536 that the run was told."""
    one = ran(seen("mcore_dense"), run(DENSE.replace("--seq-length 2048", "--seq-length 1536")))
    assert one.beside.ratio is not None and one.beside.ratio[0] == pytest.approx(4 / 3)
    assert one.closer is None and "1.33 times tensors of the run: the microbatch had" in one.hints[0]


def test_rows_of_experts_are_one_ratio_and_states_before_the_trace_a_sum() -> None:
    """The sample routes evenly, the estimate takes 1.01 times the rows; masters are older than the trace: 43 blocks without a name."""
    found, job = seen("mcore_moe_late_start"), run(MOE, 4, routing_phase="forced_balance")
    one = ran(found, job)
    assert one.beside.ratio is not None and one.beside.ratio[0] == pytest.approx(1 / 1.01, rel=1e-3)
    assert "--router-imbalance" in one.hints[0]
    assert not [left for left in one.beside.only_predicted if left.part == "optimizer"]
    even = beside(found, estimate(run(MOE, 4, router_imbalance=1.0)))
    assert even.explained > 0.997


STRAY = [{"filename": "/code/extra_loss.py", "name": "keep", "line": 12}]


def stray(values: dict[str, Any]) -> None:
    """A block of 700 MiB that a line of the user's own keeps."""
    trace = max(values["device_traces"], key=len)
    event = {
        "action": "alloc",
        "addr": 64,
        "size": 700 * MIB,
        "stream": 0,
        "time_us": trace[0]["time_us"],
        "frames": STRAY,
    }
    trace.insert(0, event)
    block = {
        "address": 64,
        "size": 700 * MIB,
        "requested_size": 700 * MIB,
        "state": "active_allocated",
        "frames": STRAY,
    }
    values["segments"].append(
        {"device": 0, "address": 64, "total_size": 700 * MIB, "segment_type": "large", "blocks": [block]}
    )


def test_a_stray_block_stands_alone_with_its_line() -> None:
    one = ran(seen("mcore_dense", stray), run(DENSE))
    first = one.beside.only_seen[0]
    assert (first.part, first.blocks, first.nbytes, first.where) == (
        "not ours",
        1,
        700 * MIB,
        "/code/extra_loss.py:12 keep",
    )
    assert one.beside.seen - one.beside.agreed == pytest.approx(700 * MIB, abs=MIB) and one.closer is None


def test_microbatches_more_than_ours_are_tensors_once_more() -> None:
    """The sample has three microbatches in flight, where a run without a pipeline has one."""
    found, job = seen("mcore_moe_ring"), run(MOE, 4, router_imbalance=1.0)
    one = beside(found, estimate(job))
    assert one.again > 0.6 * (one.seen - one.agreed)
    twice = [left for left in one.only_seen if left.tensor == "fp32 logits, then softmax"]
    assert [left.blocks for left in twice if left.nbytes > MIB] == [2]


def test_the_command_compares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(sample("mcore_dense"))
    words = ["snapshot", str(path), "--num-gpus", "1"]
    main([*words, "--", *DENSE.split(), "--no-bias-swiglu-fusion"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(
        "The run explains 100.0% of 5.38 GiB (stage 0 of 1, forward of output.loss_func, 5.61 GiB predicted)"
    )
    assert lines[1] == "With --bias-activation-fusion the run explains 100.0%, and 0.12 GiB less stand apart."
    assert any(
        line.startswith("in the prediction alone: 0.06 GiB, 4 blocks, activations: layers.0-3.mlp.activation")
        for line in lines
    )
    main([*words, "--json", "--", *DENSE.split()])
    found = json.loads(capsys.readouterr().out)["beside"]
    assert found["explained"] > 0.9999 and found["settings"] == {} and found["only_seen"][0]["blocks"] >= 1


def test_a_page_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One file with the same sentences and lines, and names of files escaped."""
    path, page = tmp_path / "a<b.pickle", tmp_path / "report.html"
    path.write_bytes(sample("mcore_dense"))
    main(
        ["snapshot", str(path), "--html", str(page), "--num-gpus", "1", "--", *DENSE.split(), "--no-bias-swiglu-fusion"]
    )
    text, lines = page.read_text(), capsys.readouterr().out.splitlines()
    assert lines[0] in text and "a&lt;b.pickle" in text and "a<b" not in text and "<script" not in text
    assert "layers.0-3.mlp.activation.linear half" in text and "fused_adam.py:421 _initialize_state" in text
    with pytest.raises(SystemExit) as refused:
        main(["snapshot", str(path), "--html", "report.txt"])
    assert refused.value.code == 2
