"""Scripts of frameworks from the file to the job: files that they source, programs that train, loops over layouts."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron_memory_estimator import ConfigError, TrainingJob
from megatron_memory_estimator.errors import QuestionsError
from megatron_memory_estimator.inputs.dialects import slime
from megatron_memory_estimator.inputs.dialects.run import Run
from megatron_memory_estimator.inputs.runs.files import job_from_file

LOOP = """
LAYOUTS=("4,2" "2,1")
for LAYOUT in "${LAYOUTS[@]}"; do
  IFS=, read -r TP PP <<< "$LAYOUT"
  torchrun --nproc_per_node 8 run_recipe.py --recipe qwen3_8b_sft_config --dataset squad train.global_batch_size=32 \\
    model.tensor_model_parallel_size=$TP model.pipeline_model_parallel_size=$PP
done
"""
MODEL = """
MODEL_ARGS=(--num-layers 4 --hidden-size 256 --num-attention-heads 8 --vocab-size 1024 --swiglu --normalization RMSNorm
  --disable-bias-linear --position-embedding-type rope)
"""
POLICY = """
source {model}
python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 8 --hf-checkpoint /root/m --rollout-batch-size 8 --n-samples-per-prompt 8 \\
  --rollout-max-response-len 1024 --global-batch-size 64 --use-dynamic-batch-size --max-tokens-per-gpu 2048 "${{MODEL_ARGS[@]}}"
"""
ASYNC = """
python -m {module} --config-path=config --config-name=fully_async_ppo_megatron_trainer.yaml algorithm.adv_estimator=grpo \\
  actor_rollout_ref.actor.strategy=megatron actor_rollout_ref.model.path=Qwen/Qwen3-8B data.max_prompt_length=512 \\
  data.max_response_length=1024 actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.actor.use_dynamic_bsz=True \\
  actor_rollout_ref.actor.ppo_max_token_len_per_gpu=4096 trainer.nnodes={nodes} trainer.n_gpus_per_node=8 rollout.nnodes=2
"""


def job(path: Path, text: str, **given: object) -> TrainingJob:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return job_from_file(str(path), None, given)


def test_overrides_behind_an_option_tell_runs_apart(tmp_path: Path) -> None:
    """`--dataset squad a.b=1`: the override is no value of the option, whose values change nothing."""
    with pytest.raises(ConfigError, match="LAYOUT = 4,2, 2,1"):
        job(tmp_path / "run.sh", LOOP)
    found = job(tmp_path / "run.sh", LOOP, set_variables={"LAYOUT": "4,2"})
    assert (found.layout.tp, found.layout.pp) == (4, 2)
    same = LOOP.replace("model.tensor_model_parallel_size=$TP", "optimizer.lr=$TP").replace("=$PP", "=1")
    assert job(tmp_path / "run.sh", same).layout.pp == 1


def test_a_path_of_another_machine_means_the_file_beside(tmp_path: Path) -> None:
    tree = tmp_path / "slime"
    (tree / "scripts" / "models").mkdir(parents=True)
    (tree / "scripts" / "models" / "small.sh").write_text(MODEL)
    sourced = POLICY.format(model="/root/slime/scripts/models/small.sh")
    assert job(tree / "scripts" / "run.sh", sourced).model.num_layers == 4
    with pytest.raises(QuestionsError, match=r"/root/slime/scripts/models/small.sh.*--follow"):
        job(tree / "examples" / "x" / "run.sh", sourced)
    assert job(tree / "examples" / "x" / "run.sh", sourced, follow=True).model.num_layers == 4
    with pytest.raises(QuestionsError, match="MODEL_ARGS"):
        job(tree / "examples" / "x" / "run.sh", POLICY.format(model="/root/small.sh"), follow=True)


def test_norms_behind_attention_are_refused() -> None:
    """GLM-4 of slime keeps the inputs of two norms more in every layer."""
    words = "--num-rollout 1 --post-self-attn-layernorm --use-dynamic-batch-size --max-tokens-per-gpu 2048"
    refused = slime.read(Run(program="train.py", words=tuple(words.split()))).refused
    assert any("--post-self-attn-layernorm" in one for one in refused)


@pytest.mark.parametrize(
    "module", ["verl.experimental.fully_async_policy.fully_async_main", "recipe.fully_async_policy.fully_async_main"]
)
def test_trainers_whose_engines_are_apart_train(module: str, tmp_path: Path) -> None:
    """volcengine/verl `verl/experimental/fully_async_policy/fully_async_main.py`: trainer.nnodes are those that train."""
    found = job(tmp_path / "run.sh", ASYNC.format(module=module, nodes=4))
    assert found.layout.world_size == 32 and not found.rollout.rollout_colocated


def test_all_counts_that_wait_for_a_variable_are_named(tmp_path: Path) -> None:
    text = ASYNC.format(module="verl.experimental.fully_async_policy.fully_async_main", nodes="$WORLD_SIZE")
    text = text.replace("mini_batch_size=32", "mini_batch_size=$MINI")
    with pytest.raises(ConfigError) as error:
        job(tmp_path / "run.sh", text)
    assert "--set WORLD_SIZE=N" in str(error.value) and "--set MINI=N" in str(error.value)
    found = job(tmp_path / "run.sh", text, set_variables={"WORLD_SIZE": "2", "MINI": "64"})
    assert (found.layout.world_size, found.training.global_batch_size) == (16, 64)


def test_short_options_of_the_performance_launcher(tmp_path: Path) -> None:
    """NVIDIA-NeMo/Megatron-Bridge `scripts/performance/argument_parser.py`."""
    words = "-a me -p batch -g h100 -m llama -mr llama3_70b -ng 64 -gn 8 -c bf16"
    found = job(tmp_path / "run.sh", f"python scripts/performance/setup_experiment.py {words}")
    assert found.layout.world_size == 64 and found.model.num_layers == 80


def test_an_override_file_asks_for_its_model_and_its_gpus(tmp_path: Path) -> None:
    with pytest.raises(QuestionsError, match="--model NAME --num-gpus N"):
        job(tmp_path / "over.yaml", "model: {tensor_model_parallel_size: 2}\ntrain: {global_batch_size: 8}\n")


def test_a_count_whose_variable_vanishes_is_asked_for(tmp_path: Path) -> None:
    """`--actor-num-nodes $NODES`: nothing sets it, and argparse would stop."""
    text = MODEL + POLICY.format(model="/dev/null").replace("num-nodes 1", "num-nodes $NODES")
    with pytest.raises(QuestionsError, match="--set NODES=VALUE"):
        job(tmp_path / "run.sh", text)
    assert job(tmp_path / "run.sh", text, set_variables={"NODES": "2"}).layout.world_size == 16


def test_a_config_whose_path_is_not_known_is_asked_for_by_its_variable(tmp_path: Path) -> None:
    """NVIDIA-NeMo/RL `tests/test_suites/llm/`: the path stands in a file that is sourced."""
    with pytest.raises(QuestionsError, match="--set CONFIG_PATH=PATH"):
        job(
            tmp_path / "run.sh",
            "source $HERE/common.env\nuv run examples/run_grpo.py --config $CONFIG_PATH grpo.max_num_steps=2\n",
        )
