"""Launch scripts of forks, as their examples write them: answered as they are, as a bound, or refused by name.

The arguments are those of Ascend/MindSpeed and MindSpeed-LLM, alibaba/Pai-Megatron-Patch, deepspeedai/Megatron-DeepSpeed, older
Megatron-LM, HYGON's and LoongForge's trees; their signs stand in `fork_arguments.csv`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from megatron_memory_estimator import EstimatorError, TrainingJob, estimate
from megatron_memory_estimator.report.check import checked
from megatron_memory_estimator.report.verdict import verdict_sentence

SCRIPT = """#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
NPUS_PER_NODE=8
MASTER_ADDR=localhost
NNODES=1
NODE_RANK=0
TP=2
PP=2
DISTRIBUTED_ARGS="
    --nproc_per_node $NPUS_PER_NODE \\
    --nnodes $NNODES \\
    --node_rank $NODE_RANK \\
    --master_addr $MASTER_ADDR
"
GPT_ARGS="
    --tensor-model-parallel-size ${TP} \\
    --pipeline-model-parallel-size ${PP} \\
    --num-layers 8 \\
    --hidden-size 1024 \\
    --ffn-hidden-size 2816 \\
    --num-attention-heads 16 \\
    --tokenizer-type NullTokenizer \\
    --vocab-size 32000 \\
    --seq-length 4096 \\
    --max-position-embeddings 4096 \\
    --micro-batch-size 1 \\
    --global-batch-size 16 \\
    --swiglu \\
    --normalization RMSNorm \\
    --disable-bias-linear \\
    --bf16
"
FORK_ARGS="
    ARGS
"
torchrun $DISTRIBUTED_ARGS pretrain_gpt.py $GPT_ARGS $FORK_ARGS --distributed-backend nccl | tee logs/train.log
"""


class Case(NamedTuple):
    """Arguments of a fork, and what becomes of a script with them: `same` as without them, or as with `ours`; a bound; refused."""

    fork: str
    args: str
    becomes: str
    ours: str = ""


CASES = [
    Case("MindSpeed", "--use-fused-rmsnorm --jit-compile --enable-share-memory", "same"),
    Case("MindSpeed", "--use-fused-rotary-pos-emb --use-fused-swiglu --no-shared-storage --hccl-slice-size 10", "same"),
    Case("MindSpeed", "--swap-attention", "upper"),
    Case("MindSpeed", "--recompute-activation-function --recompute-activation-function-num-layers 2", "upper"),
    Case("MindSpeed", "--reuse-fp32-param --swap-optimizer", "upper"),
    Case("MindSpeed", "--lora-r 16 --lora-alpha 32 --lora-target-modules linear_qkv linear_proj --lora-fusion", "upper"),
    Case("MindSpeed", "--add-dense-bias", "lower"),
    Case("MindSpeed", "--moe-fb-overlap", "lower"),
    Case("MindSpeed", "--swap-attention --add-dense-bias", "refused"),
    Case("MindSpeed", "--tp-2d --tp-x 2 --tp-y 2", "refused"),
    Case("MindSpeed", "--layerzero --layerzero-config layerzero.yaml", "refused"),
    Case("MindSpeed", "--loss-compute-mode chunk --loss-chunk-size 1024", "upper"),
    Case("Pai-Megatron-Patch", "--flash-attention --epochs 2", "same"),
    Case("Pai-Megatron-Patch", "--optimizer-offload-policy auto", "upper"),
    Case("Megatron-DeepSpeed", "--use-flash-attn-v2", "same"),
    Case("Megatron-DeepSpeed", "--deepspeed --deepspeed_config ds.json --zero-stage 1", "refused"),
    Case("Megatron-DeepSpeed", "--num-key-value-heads 4", "same", "--group-query-attention --num-query-groups 4"),
    Case("older Megatron-LM", "--DDP-impl local --no-async-tensor-model-parallel-allreduce --data-impl mmap", "same"),
    Case("older Megatron-LM", "--pipeline-model-parallel-split-rank 1", "refused"),
    Case("HYGON", "--combined-1f1b --combined-1f1b-recipe ep_a2a", "lower"),
    Case("LoongForge", "--custom-pipeline-layers 5,3", "same", "--decoder-first-pipeline-num-layers 5"),
    Case("a fork", "--use-rmsnorm --use-rope", "same", "--use-rotary-position-embeddings"),
]  # fmt: skip


def test_there_are_twenty() -> None:
    assert len(CASES) >= 20 and {one.becomes for one in CASES} == {"same", "upper", "lower", "refused"}


def job(folder: Path, args: str, **settings: Any) -> TrainingJob:
    script = folder / "run.sh"
    script.write_text(SCRIPT.replace('ARGS\n"\ntorchrun', f'{args}\n"\ntorchrun'))
    return TrainingJob.from_file(script, **settings)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.fork}: {case.args}"[:60])
def test_a_script_of_a_fork(case: Case, tmp_path: Path) -> None:
    if case.becomes == "refused":
        with pytest.raises(EstimatorError) as error:
            job(tmp_path, case.args, without_unmodelled=True)
        assert case.args.split()[0].lstrip("-").replace("_", "-") in str(error.value).replace("_", "-")
        return
    if case.becomes in ("upper", "lower"):
        with pytest.raises(
            EstimatorError, match=f"--without-unmodelled answers without (it|them): an? {case.becomes} bound"
        ):
            job(tmp_path, case.args)
    found = estimate(job(tmp_path, case.args, without_unmodelled=case.becomes != "same"))
    plain = estimate(job(tmp_path, case.ours))
    assert [one.peak_allocated_bytes for one in found.stages] == [one.peak_allocated_bytes for one in plain.stages]
    assert found.job.bound == (case.becomes if case.becomes != "same" else "")
    if case.becomes != "same":
        assert f"the figures are {'an' if case.becomes == 'upper' else 'a'} {case.becomes} bound" in verdict_sentence(
            found
        )
        assert checked(found).code == (0 if case.becomes == "upper" else 4)
