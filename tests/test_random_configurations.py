"""Random configurations, drawn before anyone looked, against Megatron-Core's and TransformerEngine's own classes: sixty, and all that both
sides accept of later draws, 184 of 260 ("fresh"), 153 of 200 ("third"), 265 of 300 ("fourth"; 24 are left out: the kept bytes of
22 with compiled bodies of Gated DeltaNet, and of two with an fp32 residual of the local spec, are not told without a GPU), 269 of 300
("fifth"; left out are 23 with compiled bodies of Gated DeltaNet, four with qk_l2_norm, which the check does not build, one with an fp32
residual of the local spec, and three whose overlapped shared experts Megatron-Core refuses beside latent experts).

Facts: Megatron-Core 0.19.2 and TransformerEngine 2.20.2 run on tensors without contents; moments of a ring are those of its last rank.
Each record has the parameters, DDP buffers and bytes kept by one microbatch; `layer` one layer of a middle stage with the most bytes
alive in its forward and in its backward, between the received activations and what the schedule still refers to; `chunk` the same of the
only stage, embedding and head included. The fifth draw has it where it can be told (not with compiled bodies run op by op, such as
that of the attention's output gate) and is not small change of chunks below 100 MB: 77 agree of 148.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from megatron_memory_estimator import estimate
from megatron_memory_estimator.rank.chunks import Run
from megatron_memory_estimator.tape.ops import Unit
from megatron_memory_estimator.tape.simulate import Machine, play
from megatron_memory_estimator.tape.tensor import Tensor

from .helpers import FACTS, record_job

RECORDS = [json.loads(line) for line in (FACTS / "random_configurations.jsonl").read_text().splitlines()]
DECOMPOSED = ("squared_relu", "quick_gelu", "silu")
"""Activations whose unfused or compiled bodies run op by op without a GPU: their moments are too high there."""


COMPILED = "what a compiled body of Gated DeltaNet keeps is told by a partitioner on a CPU"
WINDOW = "dropout with a window is flash attention's, which is not there; unfused attention takes its place"
KEPT_OTHERWISE = {
    "fresh 24": COMPILED,
    "fresh 155": WINDOW,
    "fresh 222": COMPILED,
    "third 13": COMPILED,
    "third 78": COMPILED,
    "third 101": WINDOW,
    "third 164": WINDOW,
    "third 186": COMPILED,
}
"""Kept bytes further away than 0.1 percent, and why."""


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["name"])
def test_parameters_buffers_and_kept_bytes(record: dict[str, Any]) -> None:
    stage = estimate(record_job(record, apex=False)).stages[record["pp_rank"]]
    assert list(stage.num_parameters) == record["parameters"]
    buffers = [[b.chunk, b.group, b.numel, b.numel_unpadded] for b in stage.rank.buffers]
    assert buffers == record.get("buffers", buffers)
    kept = [plan.saved_bytes - sum(only_held(run) * run.copies for run in plan.runs) for plan in stage.rank.plans]
    equal = kept == [pytest.approx(nbytes, rel=1e-3) for nbytes in record["kept"]]
    assert equal == (record["name"] not in KEPT_OTHERWISE), (kept, record["kept"])


def only_held(run: Run) -> int:
    """Bytes that nothing but the pipeline's schedule refers to, which is not what autograd keeps."""
    saved = run.trace.saved
    return sum(
        x.tensor.nbytes for x in saved if [saver.name for saver in x.saved_by] == ["input_tensors of the schedule"]
    )


class Held(Machine):
    """The output's gradient is referred to by the schedule through the whole backward (backward_step)."""

    def __init__(self, unit: Unit) -> None:
        super().__init__()
        self.exit = unit.exit

    def new_grad(self, item: Tensor) -> None:
        super().new_grad(item)
        if item is self.exit:
            self.hold_grads((item,))


def moments(record: dict[str, Any]) -> tuple[int, int]:
    """The most bytes of the layer's forward and of its backward."""
    cut = record["layer"]
    config = {k: v for k, v in record["config"].items() if k not in cut["without"]} | cut["config"]
    settings = {k: v for k, v in record["settings"].items() if k not in cut["dropped"]} | cut["settings"]
    job = record_job({"config": config, "num_gpus": cut["num_gpus"], "settings": settings}, apex=False)
    unit = estimate(job).stages[1].rank.plans[0].runs[0].unit
    machine = Held(unit)
    split = play(unit, machine)[0]
    nbytes = [event.nbytes for event in machine.events]
    return max(nbytes[:split]), max(nbytes[split:])


def layers() -> Iterator[dict[str, Any]]:
    """Records of a layer whose moments can be told."""
    for record in RECORDS:
        config = record["config"]
        fused = config.get("bias_activation_fusion") and config["activation_func"] not in ("squared_relu", "quick_gelu")
        if "layer" in record and (fused or config["activation_func"] not in DECOMPOSED):
            yield record


STAYS = "input and gradient of a recomputed MoE layer stay (modelled between steps only)"
ROTARY = "cosines and sines of query and key are not there at once in a checkpoint's first forward"
KNOWN = {
    "random 1": "the mask of a windowed softmax is counted twice in the forward",
    "random 6": "an index_add of its own without a GPU",
    "random 54": "dropout that is not fused makes its mask in a checkpoint's first forward",
    "fresh 187": "maps of a layer of 1.5 MiB",
    "fresh 199": "dropout makes its mask in a checkpoint's first forward",
    "fresh 222": COMPILED,
    "fresh 223": ROTARY,
    "fresh 247": ROTARY,
    "third 13": COMPILED,
    "third 71": "a copy of all values more under recompute_modules core_attn",
    "third 80": "the check's schedule does not free the output that was sent",
    "third 112": ROTARY,
    "third 170": STAYS,
}
"""Moments further away than half a percent, and why."""


@pytest.mark.parametrize("record", list(layers()), ids=lambda record: record["name"])
def test_the_largest_moments_of_a_layer(record: dict[str, Any]) -> None:
    expected = record["layer"]["forward"], record["layer"]["backward"]
    away = [found / truth - 1 for found, truth in zip(moments(record), expected, strict=True)]
    if record["name"] in KNOWN:
        assert 0.005 < max(map(abs, away)) < 0.1
    else:
        assert max(map(abs, away)) < 0.005, away


NATIVE = "the native fused loss is counted with a second fp32 copy of the logits (docs/explanation/limits.md)"
JOINED = "gradient of the joined hidden states of MTP beside the layers' backward"
LEARNS = "an indexer's loss is counted in a checkpoint's first forward, which has none"
HEIRS = "without a GPU a sum under a checkpoint takes over the bytes of a gradient that others refer to"
CHUNKS = {
    "fourth 66": NATIVE,
    "fourth 71": NATIVE,
    "fourth 108": NATIVE,
    "fourth 114": NATIVE,
    "fourth 143": NATIVE,
    "fourth 22": LEARNS,
    "fourth 214": NATIVE,
    "fourth 259": NATIVE,
    "fifth 20": LEARNS,
    "fifth 161": JOINED,
    "fifth 174": LEARNS,
    "fifth 175": HEIRS,
    "fifth 211": JOINED,
    "fifth 281": LEARNS,
}
"""Moments of a chunk further away than half a percent, and why."""


@pytest.mark.parametrize("record", [one for one in RECORDS if "chunk" in one], ids=lambda record: record["name"])
def test_the_largest_moments_of_a_chunk(record: dict[str, Any]) -> None:
    tops = estimate(record_job(record, apex=False)).stages[record["pp_rank"]].rank.plans[0].tops
    truth = record["chunk"]
    away = {name: tops[letter].nbytes / truth[name] - 1 for letter, name in (("F", "forward"), ("B", "backward"))}
    if record["name"] not in CHUNKS:
        assert max(map(abs, away.values())) < 0.005, away
    elif CHUNKS[record["name"]] == NATIVE:
        assert away["forward"] > 0.2
    else:
        assert 0.005 < max(map(abs, away.values())) < 0.15, away
