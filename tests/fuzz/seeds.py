"""What mutation starts from: inputs that are accepted, of every kind and construct."""

from __future__ import annotations

import json
from typing import Any

from megatron_memory_estimator.inputs.catalog import entries
from megatron_memory_estimator.inputs.megatron.table import arguments
from megatron_memory_estimator.inputs.setting_names import known_settings
from megatron_memory_estimator.job.layout import SHORT

from ..helpers import FACTS
from .mutate import Words

SMALL = (
    "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 --micro-batch-size 1 "
    "--vocab-size 1000"
)
LAUNCH = f"python pretrain_gpt.py {SMALL}"
SNIPPETS = (
    "A=1; B=x; R=(a 'b c')",
    '[ "$A" = 1 ] && V=8 || V=2',
    "if [[ $A -gt 1 && -n $B ]]; then V=1; elif test $A; then V=2; else V=3; fi",
    "case $B in x|y) V=1 ;; [0-9]*) V=2 ;& *) V=3 ;; esac",
    "for i in 1 2 3; do V+=$i; done",
    "for ((i=0; i<3; i++)); do ((V+=i)); done",
    "n=0; while [ $n -lt 3 ]; do n=$((n + 1)); done; until true; do break; done",
    'f() { local V=9; echo $1; return 1; }\nW=$(f 3)\nfunction g { f "$@"; }; g a b',
    'read -r V W <<< "8 9"; printf -v V %d 8; let V=8; unset W; export V; declare -a R=(1 2)',
    "cat > job.sh <<EOF\npython pretrain_gpt.py --lr $A\nEOF\nbash job.sh",
    'V="${A:-4}${A:+5}${#A}${A%.*}${A##*/}${A/a/b}${A//[0-9]/n}${A:1:2}${A^^}${R[@]:1}${#R[@]}${!R[@]}"',
    "V=$((1 + 2 * (3 ** 2) / 4 % 5 << 1 | 6 & 7 ^ 8)) W=$((A > 1 ? 2 : 3))",
    "V=$(seq 3 | head -1) W=`basename a/b` X=$(expr 1 + 2) Y=$(dirname /a/b) Z=$(nproc)",
    "set -euo pipefail; shift; set -- a b; eval \"V=$A\"; trap 'exit' EXIT; source env.sh; . ./x",
    "(V=8); { V=8; }; ! false; true | V=8; V=8 & wait; exec 2>&1 > log.txt",
    "export CUDA_DEVICE_MAX_CONNECTIONS=1 NCCL_NVLS_ENABLE=0; WORLD_SIZE=8; NNODES=${NNODES:-2}",
    "#SBATCH --nodes=2\n#SBATCH --gpus-per-node=8\n",
    "ARGS=(\n --num-layers 8 # layers\n --bf16\n)\nARGS+=(--swiglu)",
)
RUNS = (
    LAUNCH,
    f'torchrun --nproc_per_node=8 --nnodes $NNODES pretrain_gpt.py {SMALL} "${{ARGS[@]}}" $V',
    f"srun -N 2 --ntasks-per-node 8 bash -c 'python -u pretrain_gpt.py {SMALL} --bf16 \"$@\"' _ a",
    f"mpirun -np 8 python pretrain_gpt.py {SMALL}; deepspeed --num_gpus 8 pretrain_gpt.py {SMALL}",
)
LLAMA = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 1000,
    "intermediate_size": 128,
}  # fmt: skip
DENSE = {
    "num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "num_query_groups": 2, "ffn_hidden_size": 128, "vocab_size": 1000,
    "gated_linear_unit": True, "activation_func": "silu",
}  # fmt: skip
EXPERTS = {
    **DENSE, "num_moe_experts": 8, "moe_router_topk": 2, "moe_ffn_hidden_size": 64, "moe_layer_freq": "([0]*1+[1]*3)",
    "moe_grouped_gemm": True, "moe_token_dispatcher_type": "alltoall",
}  # fmt: skip
SETTINGS: dict[str, Any] = {
    "seq_length": 64, "tensor_model_parallel_size": 2, "sequence_parallel": True, "recompute_granularity": "selective",
    "recompute_modules": ["core_attn"], "use_distributed_optimizer": True, "gpu": "H100", "global_batch_size": 8,
}  # fmt: skip
ARGV = (
    "--tensor-model-parallel-size 2 --sequence-parallel --bf16 --use-distributed-optimizer --swiglu",
    "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1 --recompute-granularity full --recompute-method uniform "
    "--recompute-num-layers 1",
    "--num-experts 8 --moe-layer-freq ([0]*1+[1]*3) --moe-router-topk 2 --expert-model-parallel-size 4 --moe-grouped-gemm",
    "--multi-latent-attention --kv-lora-rank 16 --q-lora-rank 16 --qk-head-dim 16 --mtp-num-layers 1",
    "--pipeline-model-parallel-layout Ett|ttL --pipeline-model-parallel-size 2 --context-parallel-size 2 --cp-comm-type p2p",
    "--fp8-format hybrid --fp8-recipe tensorwise --group-query-attention --num-query-groups 2 --cross-entropy-loss-fusion",
    "--hybrid-layer-pattern M*-M --spec megatron.core.models.hybrid.hybrid_layer_specs hybrid_stack_spec",
)


PIECES = (
    "alltoall", "flex", "deepep", "bf16", "fp16", "fp32", "hybrid", "e4m3", "mxfp8", "delayed", "blockwise", "adam", "muon", "sgd",
    "full", "selective", "uniform", "block", "core_attn", "mlp", "moe", "layernorm", "moe_act", "rope", "yarn", "mrope", "none",
    "RMSNorm", "LayerNorm", "silu", "gelu", "p2p", "a2a", "a2a+p2p", "optim_grads_params", "no_shard", "H100", "B200", "GB300",
    "lora", "dora", "linear_qkv", "flash", "fused", "local", "([0]*1+[1]*3)", "Ett|ttL", "M*-M", "gated_delta_net", "dsa", "attn",
    "te", "inductor", "allgather", "sigmoid", "softmax", "seq_aux_loss", "HuggingFaceTokenizer",
)  # fmt: skip
"""Words that are values of settings."""


def scripts() -> list[Any]:
    """Launch scripts: those of the tests, and one for every construct."""
    folder = FACTS.parent / "launch_scripts"
    own = [f'{snippet}\n{RUNS[at % len(RUNS)]} --save "$V"\n' for at, snippet in enumerate(SNIPPETS)]
    return [*own, "\n".join((*SNIPPETS[:6], RUNS[1])), *(path.read_text() for path in sorted(folder.glob("*.sh")))]


def configs() -> list[Any]:
    """One config of the catalogue for every model type."""
    kinds = {entry["config"].get("model_type"): entry["config"] for entry in entries().values()}
    return [LLAMA, *kinds.values(), {"model_type": "llava", "text_config": LLAMA, "vision_config": {}}]


def word_lists() -> list[Any]:
    """Megatron-LM arguments."""
    return [SMALL.split(), *([*SMALL.split(), *more.split()] for more in ARGV)]


def documents() -> list[Any]:
    """Run descriptions and files of Megatron-LM arguments."""
    flat = {"--num-layers": 4, "--hidden-size": 64, "--num-attention-heads": 4, "--seq-length": 64, "--max-position-embeddings": 64,
            "--micro-batch-size": 1, "--vocab-size": 1000}  # fmt: skip
    training = {name: EXPERTS[name] for name in ("moe_grouped_gemm", "moe_token_dispatcher_type")}
    experts = {name: value for name, value in EXPERTS.items() if name not in training}
    return [
        {"model": {"name": "Qwen/Qwen3-0.6B"}, "parallelism": {"num_gpus": 8, "tp": 2, "pp": 2}, "training": {"seq_length": 64}},
        {"model": DENSE, "parallelism": {"num_gpus": 4, "tensor-model-parallel-size": 2},
         "training": SETTINGS_OF_YAML, "precision": {"bf16": True}},
        {"model": experts, "training": training,
         "parallelism": {"num_gpus": 8, "ep": 2, "pipeline_model_parallel_layout": "Ett|ttL", "pp": 2}},
        {"ENV_VARS": {"GPUS_PER_NODE": 8, "NUM_NODES": 2},
         "MODEL_ARGS": {**flat, "--bf16": True, "--recompute-modules": "[core_attn mlp]"}},
        flat,
    ]  # fmt: skip


SETTINGS_OF_YAML = {
    "seq_length": 64,
    "recompute_granularity": "full",
    "recompute_method": "block",
    "recompute_num_layers": 1,
}
YAML_TEXTS = (
    "model: &m {name: Qwen/Qwen3-0.6B}\nparallelism:\n  <<: {tp: 2}\n  num_gpus: 8\n",
    "model: !!map\n  num_layers: !!int 4\n  hidden_size: 0x40\n  num_attention_heads: 4\n  vocab_size: 1_000\n"
    "training: {seq_length: 1:4}\n",
    "a: &a [1, 2]\nb: [*a, *a]\nmodel: ~\n--- \nx\n",
    "MODEL_ARGS:\n  --num-layers: 2\n  --moe-layer-freq: ([0]*1+[1]*1)\n",
)


def bridges() -> list[Any]:
    """Sections of a Megatron-Bridge ConfigContainer."""
    lines = (FACTS / "recipes.jsonl").read_text().splitlines()
    own = {
        "model": {**EXPERTS, "pipeline_model_parallel_layout": [["embedding", "decoder"], ["decoder"] * 3 + ["loss"]],
                  "activation_func": {"_target_": "torch.nn.functional.silu", "_call_": False}, "pipeline_model_parallel_size": 2},
        "train": {"micro_batch_size": 1, "global_batch_size": 8}, "ddp": {"use_distributed_optimizer": True}, "data_parallel_size": 2,
        "mixed_precision": {"bf16": True, "fp8": "hybrid"}, "peft": {"type": "lora", "target_modules": ["linear_qkv"]},
    }  # fmt: skip
    return [
        {"model": DENSE, "train": {}, "mixed_precision": "bf16_mixed"},
        own,
        *(json.loads(line)["bridge"] for line in lines[::12]),
    ]


RUN: dict[str, Any] = {
    "id": "own", "group": "g", "family": "f", "features": ["te"], "source": "s", "date": "2026-01-01", "gpu": "H100", "num_gpus": 1,
    "phase": "first-run", "rank": "last", "env": {"A": "b"}, "settings": {"transformer_engine_version": "2.5"},
    "args": {"num-layers": 2, "hidden-size": 64, "num-attention-heads": 4, "seq-length": 64, "max-position-embeddings": 64,
             "micro-batch-size": 1, "vocab-size": 1000, "bf16": True},
    "measured": {"allocated_bytes": 100000000, "max_allocated_bytes": 120000000},
}  # fmt: skip
STEP: dict[str, Any] = {
    "id": "own", "family": "f", "source": "s", "bridge": {"model": DENSE, "train": {"micro_batch_size": 1}}, "num_gpus": 1, "gpu": "H100",
    "settings": {"transformer_engine_version": "2.5"}, "tokens_per_s_gpu": 9000.0, "primary": True,
}  # fmt: skip
LOGS = (
    "[Rank 0] (after 2 iterations) memory (MB) | allocated: 1.5 | max allocated: 20.25 | reserved: 30.0\n",
    "[Rank 1] (after save_checkpoint for iteration 9) memory (GB) | mem-allocated-gigabytes: 1.5 | mem-max-allocated-gigabytes: 2e1\nx\n",
)


def keys() -> Words:
    """Names and values of settings, of TransformerConfig and of this project."""
    return Words(
        PIECES, (*known_settings(), *SHORT, "num_gpus", "name", "gpu", "env", "strict", "bf16", "attention_backend")
    )


def hugging_face_keys() -> Words:
    """Every key of a config in the catalogue, and the words that are their values."""
    found = {key: value for config in configs() for key, value in config.items()}
    return Words(sorted({value for value in found.values() if isinstance(value, str)}), sorted(found))


def flags() -> Words:
    """Every argument of Megatron-LM."""
    return Words(PIECES, sorted("--" + name for name in arguments()[0]))
