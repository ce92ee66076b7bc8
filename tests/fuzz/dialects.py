"""Run files of other frameworks: words of their programs, documents, scripts, and YAML with variables that the caller gives."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

from megatron_memory_estimator import TrainingJob, estimate
from megatron_memory_estimator.inputs import dialects
from megatron_memory_estimator.inputs.dialects.job import job_of
from megatron_memory_estimator.inputs.dialects.run import Run
from megatron_memory_estimator.inputs.dialects.table import dialect_of
from megatron_memory_estimator.inputs.hf.load import load_named
from megatron_memory_estimator.inputs.runs.files import job_from_file, job_from_text
from megatron_memory_estimator.inputs.strict_yaml import parse_yaml

from . import seeds
from .mutate import Words, argv, as_text, text, tree
from .watch import Outcome, Reader, written

A, R = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
SLIME = (
    f"train.py {seeds.SMALL} --actor-num-nodes 1 --actor-num-gpus-per-node 4 --colocate --hf-checkpoint /m/x --rollout-batch-size 16 "
    "--n-samples-per-prompt 8 --global-batch-size 64 --rollout-max-response-len 64 --sglang-mem-fraction-static 0.65 "
    "--use-dynamic-batch-size --max-tokens-per-gpu 6144 --tensor-model-parallel-size 2"
)
WORDS = (
    "megatron sft --model Qwen/Qwen3-0.6B --packing true --max_length 512 --tensor_model_parallel_size 2 --sequence_parallel true",
    "megatron rlhf --rlhf_type grpo --model Qwen/Qwen3-0.6B --max_length 512 --max_completion_length 64 --vllm_mode colocate "
    "--vllm_gpu_memory_utilization 0.4 --sleep_level 1 --offload_model true",
    "megatron sft --model Qwen/Qwen3-0.6B --tuner_type lora --lora_rank 8 --target_modules all-linear --max_length 512",
    "verl.trainer.main_ppo --config-path=config --config-name=ppo_megatron_trainer actor_rollout_ref.model.path=Qwen/Qwen3-0.6B "
    f"algorithm.adv_estimator=grpo data.max_prompt_length=64 data.max_response_length=64 {A}.ppo_mini_batch_size=32 {R}.n=4 "
    f"{A}.ppo_micro_batch_size_per_gpu=2 {A}.megatron.tensor_model_parallel_size=2 {A}.use_kl_loss=True {R}.gpu_memory_utilization=0.6 "
    "trainer.nnodes=1 trainer.n_gpus_per_node=8",
    "verl.trainer.sft_trainer engine=megatron model.path=Qwen/Qwen3-0.6B data.max_length=64 data.micro_batch_size_per_gpu=2 "
    "engine.tensor_model_parallel_size=2 model.lora.rank=8",
    "examples/run_grpo_math.py --config conf/run.yaml policy.megatron_cfg.tensor_model_parallel_size=2 cluster.gpus_per_node=8",
    SLIME,
    f"{SLIME} --lora-rank 8 --target-modules all-linear --use-kl-loss --kl-loss-coef 0.1",
    f"{SLIME} --advantage-estimator ppo --entropy-coef 0.1 --rollout-temperature 0.5 --pipeline-model-parallel-size 2",
    "start_rlvr_pipeline.py --config_path conf --config_name roll",
    "run.py --config-path conf --config-name flagscale train.model.num_layers=4",
    f"flagscale/train/train_gpt.py {seeds.SMALL} --tensor-model-parallel-size 2",
    "primus/train.py --config conf/primus.yaml --tensor_model_parallel_size 2",
    "scripts/training/run_recipe.py --recipe llama32_1b_pretrain_config train.global_batch_size=64 model.recompute_granularity=full "
    "model.tensor_model_parallel_size=2 mixed_precision.grad_reduce_in_fp32=false",
    "scripts/training/run_recipe.py --model qwen3_8b --mode lora --num_gpus 8 -tp 2 -mb 1 -gb 8",
)
NEMO: dict[str, Any] = {
    "defaults": "grpo_math_1B_megatron.yaml",
    "policy": {"model_name": "Qwen/Qwen3-0.6B", "train_micro_batch_size": 2, "max_total_sequence_length": 512,
               "megatron_cfg": {"enabled": True, "tensor_model_parallel_size": 2, "sequence_parallel": True},
               "sequence_packing": {"enabled": True, "train_mb_tokens": "${mul:${policy.max_total_sequence_length},2}"}},
    "cluster": {"gpus_per_node": 8, "num_nodes": 1},
}  # fmt: skip
ROLL = {
    "prompt_length": 64, "response_length": 64, "pretrain": "Qwen/Qwen3-0.6B",
    "actor_train": {
        "model_args": {"dtype": "bf16", "lora_target": None}, "device_mapping": "list(range(0,8))",
        "training_args": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 16},
        "strategy_args": {"strategy_name": "megatron_train",
                          "strategy_config": {"tensor_model_parallel_size": 2, "use_distributed_optimizer": True}}},
    "actor_infer": {"generating_args": {"max_new_tokens": "${response_length}"}, "device_mapping": "list(range(0,8))",
                    "strategy_args": {"strategy_name": "vllm", "strategy_config": {"gpu_memory_utilization": 0.7}}},
    "reference": {"strategy_args": {"strategy_name": "megatron_infer"}, "device_mapping": "list(range(0,8))"},
}  # fmt: skip
FLAGSCALE_TRAIN = {
    "system": {"tensor_model_parallel_size": 2, "sequence_parallel": True, "use_distributed_optimizer": "${oc.env:SHARDED,true}",
               "precision": {"bf16": True}, "recompute_granularity": None},
    "model": {"num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 64, "max_position_embeddings": 64,
              "micro_batch_size": 2, "global_batch_size": 64, "swiglu": True, "multiple_of": 8},
    "data": {"tokenizer": {"tokenizer_type": "QwenTokenizerFS", "vocab_size": 1000, "make_vocab_size_divisible_by": 64}},
}  # fmt: skip
FLAGSCALE = {
    "defaults": ["_self_", {"train": "tiny"}],
    "experiment": {"exp_name": "x", "task": {"type": "train", "backend": "megatron", "entrypoint": "flagscale/train/train_gpt.py"},
                   "runner": {"backend": "torchrun", "nnodes": 1, "nproc_per_node": 8}, "envs": {"CUDA_DEVICE_MAX_CONNECTIONS": 1}},
    "action": "run",
}  # fmt: skip
PRIMUS = {
    "work_group": "${TEAM:lab}", "exp_name": "try",
    "modules": {"pre_trainer": {"framework": "megatron", "config": "pre_trainer.yaml", "model": "llama3.1_8B.yaml",
                                "overrides": {"micro_batch_size": "${MBS:2}", "global_batch_size": 128, "seq_length": 64,
                                              "tensor_model_parallel_size": "${TP:1}", "lr_decay_iters": None}}},
}  # fmt: skip
SWIFT = {
    "model": "Qwen/Qwen3-0.6B",
    "max_length": 512,
    "packing": True,
    "tensor_model_parallel_size": 2,
    "ENV": {"NPROC_PER_NODE": 8},
}
BRIDGE = {
    "model": {"tensor_model_parallel_size": 2, "recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
    "train": {"global_batch_size": 64, "micro_batch_size": 2}, "dataset": {"seq_length": 64},
    "optimizer": {"use_precision_aware_optimizer": True},
}  # fmt: skip
VERL = {
    "actor_rollout_ref": {
        "model": {"path": "Qwen/Qwen3-0.6B"}, "rollout": {"name": "vllm", "n": 4, "gpu_memory_utilization": 0.5},
        "actor": {"strategy": "megatron", "ppo_mini_batch_size": 32, "ppo_micro_batch_size_per_gpu": 2,
                  "megatron": {"tensor_model_parallel_size": 2, "param_offload": True}}},
    "critic": {"enable": True}, "data": {"max_prompt_length": 64, "max_response_length": 64},
    "trainer": {"nnodes": 1, "n_gpus_per_node": "${oc.env:GPUS,8}"},
}  # fmt: skip
BESIDE: dict[str, Any] = {
    "conf/run.yaml": NEMO, "conf/roll.yaml": ROLL, "conf/flagscale.yaml": FLAGSCALE, "conf/train/tiny.yaml": FLAGSCALE_TRAIN,
    "train/tiny.yaml": FLAGSCALE_TRAIN, "conf/primus.yaml": PRIMUS, "over.yaml": BRIDGE,
}  # fmt: skip
"""Files that runs name."""
MARKS = (
    "$TP",
    "$(nproc)",
    "${N:-2}",
    "${UNSET}",
    "(unknown)",
    "${oc.env:N}",
    "${a.b}",
    "${mul:2,3}",
    "\0$N\0",
    "\0?1\0",
    "1e-5",
    "0x10",
)


def documents() -> list[Any]:
    """A document of every framework."""
    return [NEMO, ROLL, FLAGSCALE, FLAGSCALE_TRAIN, PRIMUS, SWIFT, BRIDGE, VERL]


def lines() -> list[Any]:
    """Words of every program; two words that are a program are one."""
    found = [shlex.split(one) for one in WORDS]
    return [[" ".join(one[:2]), *one[2:]] if one[0] == "megatron" else one for one in found]


def texts() -> list[Any]:
    """Scripts of every program, documents as YAML, and scripts that write what they start."""
    import yaml

    starts = {
        "megatron": "",
        "verl.trainer.main_ppo": "python3 -m ",
        "verl.trainer.sft_trainer": "torchrun --nproc-per-node 8 -m ",
    }
    heads = (
        "",
        "TP=2\n",
        "#!/bin/bash\nset -x\nexport NPROC_PER_NODE=8 CUDA_DEVICE_MAX_CONNECTIONS=1\n",
        "if [ $A = 1 ]; then X=1; fi\n",
    )
    scripts = [heads[at % 4] + starts.get(one.split(" ")[0], "python ") + one.replace("_size 2", "_size ${TP:-2}") + ' "$@" $X\n'
               for at, one in enumerate(WORDS)]  # fmt: skip
    whole = (
        "cat > conf.yaml <<EOF\n"
        + yaml.safe_dump(NEMO).replace("$", "\\$")
        + "EOF\npython examples/run_grpo.py --config conf.yaml\n"
    )
    return [*scripts, whole, *(yaml.safe_dump(one) for one in documents())]


def with_variables() -> list[Any]:
    """Documents with what the caller sets beside them."""
    sets: tuple[dict[str, str], ...] = ({"TP": "2", "MBS": "1"}, {"GPUS": "8"}, {})
    runs = [
        *documents(),
        *seeds.documents(),
        {"ENV_VARS": {"A": 8}, "MODEL_ARGS": {"--num-layers": "${A}", "--hidden-size": "$B"}},
    ]
    return [{"file": one, "set": sets[at % 3]} for at, one in enumerate(runs)]


@lru_cache
def words() -> Words:
    """Every name in the tables of the dialects, values, and interpolations."""
    folder = Path(dialects.__file__).parent
    quoted = {name for file in sorted(folder.glob("*.py")) for text in re.findall(r'"([^"\n]+)"', file.read_text())
              for name in re.findall(r"(?<![\w.])[A-Za-z][\w.-]{2,60}", text)}  # fmt: skip
    found = seeds.keys()
    keys = sorted(quoted) + list(found.names)
    flags = [f"--{key}" for key in keys if "." not in key]
    return Words((*found.pieces, *MARKS, *(f"{key}=" for key in keys if "." in key)), (*keys, *flags))


def changed_words(random: Random, case: Any, other: Any, words: Words) -> Any:
    """Words changed; the program mostly stays, and `key=value` gets another value now and then."""
    found = argv(random, case[1:], other[1:], words)
    if found and random.random() < 0.5:
        at = random.randrange(len(found))
        key, equals, _ = found[at].partition("=")
        found[at] = (
            key + "=" + random.choice((random.choice(words.pieces), "8", "-1", "0", "1.5", "null", "[1,2]"))
            if equals
            else found[at]
        )
    return [case[0] if random.random() < 0.95 else other[0], *found]


def changed_tree(random: Random, case: Any, other: Any, words: Words) -> Any:
    """A document changed."""
    found = tree(random, case, other, words)
    return found if isinstance(found, dict) else case


def changed_text(random: Random, case: Any, other: Any, words: Words) -> Any:
    """A text changed."""
    return text(random, case, other, words)


def changed_set(random: Random, case: Any, other: Any, words: Words) -> Any:
    """A document or its text changed, and what is set beside it."""
    if random.random() < 0.3:
        import yaml

        file = case["file"] if isinstance(case["file"], str) else yaml.safe_dump(case["file"])
        return {**case, "file": text(random, file, as_text(other["file"]), words)}
    found = tree(random, case, other, words)
    kept = found if isinstance(found, dict) and isinstance(found.get("file"), str | dict) else case
    given = kept.get("set")
    return {
        "file": kept["file"],
        "set": {str(k): v for k, v in given.items() if isinstance(v, str)} if isinstance(given, dict) else {},
    }


def estimated(job: TrainingJob) -> Outcome:
    """What is said of a job, and whether its figures are figures."""
    found = estimate(job)
    document = found.to_dict()
    try:
        json.dumps(document, allow_nan=False)
    except ValueError as error:
        return Outcome(True, wrong=f"the document is no JSON: {error}")
    wrong = next((f"{path}={value}" for path, value in _negative(document, "")), "")
    return Outcome(True, (*job.assumptions, *job.warnings, job.name, job.refusal), wrong and f"negative bytes: {wrong}")


def _negative(value: Any, path: str) -> Any:
    """Bytes below nothing; differences may be."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _negative(each, f"{path}.{key}")
    elif isinstance(value, list):
        for each in value:
            yield from _negative(each, path)
    elif (
        isinstance(value, int | float)
        and value < 0
        and path.endswith("_bytes")
        and not re.search("head_room|left|delta|margin", path)
    ):
        yield path, value


def beside(folder: Path) -> None:
    """The files that runs name, in the folder."""
    if not (folder / "over.yaml").exists():
        for name, document in BESIDE.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            written(folder, name, document)


def read_words(case: Any, folder: Path) -> Outcome:
    """The job of a program with its words, and files beside it."""
    files = {name: json.dumps(document) for name, document in BESIDE.items()}
    run = Run("run.sh", case[0], tuple(case[1:]), env={"NPROC_PER_NODE": "8", "N": "2"}, num_gpus=8 if len(case) % 2 else None,
              text_of=files.get)  # fmt: skip
    dialect = dialect_of(run)
    return Outcome(False) if dialect is None else estimated(job_of(dialect, run, None, {}))


def read_document(case: Any, folder: Path) -> Outcome:
    """The job of a document."""
    files = {name: json.dumps(document) for name, document in BESIDE.items()}
    document = parse_yaml(json.dumps(case), "run.yaml", [])
    run = Run("run.yaml", document=document, model="Qwen/Qwen3-0.6B" if len(case) % 2 else "", text_of=files.get)
    dialect = dialect_of(run)
    return Outcome(False) if dialect is None else estimated(job_of(dialect, run, 8 if len(str(case)) % 2 else None, {}))


def read_text(case: Any, folder: Path) -> Outcome:
    """The job of a script or of YAML: a file with others beside it, or a text."""
    beside(folder)
    if len(case) % 3 == 0:
        return estimated(job_from_text(case, None if len(case) % 2 else 8, {}, load_named))
    name = "run.sh" if case.startswith("#!") or "python" in case[:2000] or "megatron " in case else "run.yaml"
    return estimated(job_from_file(written(folder, name, case), 8 if len(case) % 2 else None, {}))


def read_set(case: Any, folder: Path) -> Outcome:
    """The job of a YAML file with variables that the caller gives."""
    beside(folder)
    path = written(folder, "run.yaml", case["file"])
    return estimated(job_from_file(path, 8 if len(as_text(case["file"])) % 2 else None, {"set_variables": case["set"]}))


DIALECTS = (
    Reader("dialect_words", lines, changed_words, read_words, words, seconds=6.0, names_files=True),
    Reader("dialect_tree", documents, changed_tree, read_document, words, seconds=6.0, names_files=True),
    Reader("dialect_text", texts, changed_text, read_text, words, seconds=6.0, names_files=True),
    Reader("yaml_set", with_variables, changed_set, read_set, words, seconds=6.0, names_files=True),
)
