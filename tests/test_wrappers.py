"""Jobs of Kubernetes and tasks of SkyPilot: the script of their containers, and their GPUs."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_memory_estimator import EstimatorError, TrainingJob
from megatron_memory_estimator.errors import ConfigError
from megatron_memory_estimator.inputs.runs.files import job_from_file
from megatron_memory_estimator.inputs.runs.wrappers import is_wrapped, wrapped

from .random_trees import nested

MODEL = (
    "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 1 "
    "--global-batch-size 64 --vocab-size 32000 --tokenizer-type NullTokenizer --bf16"
)
CONTAINER = "{name: main, command: [/bin/bash, -c], args: ['COMMAND'], resources: {limits: {nvidia.com/gpu: 8}}}"
POD = f"{{spec: {{containers: [{CONTAINER}]}}}}"
PYTORCH = f"""
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {{name: dense}}
spec:
  pytorchReplicaSpecs:
    Master: {{replicas: 1, template: {POD}}}
    Worker: {{replicas: 3, template: {POD}}}
"""
MPI = """
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
spec:
  slotsPerWorker: 8
  mpiReplicaSpecs:
    Launcher: {replicas: 1, template: {spec: {containers: [{name: l, command: [bash, -c, "COMMAND"]}]}}}
    Worker: {replicas: 2, template: {spec: {containers: [{name: w, resources: {limits: {nvidia.com/gpu: 8}}}]}}}
"""
JOBSET = f"""
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
spec:
  replicatedJobs:
  - {{name: reader, template: {{spec: {{template: {{spec: {{containers: [{{name: r, command: [sleep, "9"]}}]}}}}}}}}}}
  - {{name: workers, replicas: 2, template: {{spec: {{parallelism: 2, template: {POD}}}}}}}
"""
JOB = f"""
apiVersion: batch/v1
kind: Job
metadata: {{name: one}}
spec: {{completions: 4, completionMode: Indexed, template: {POD}}}
"""
SKY = """
resources: {accelerators: H100:8}
num_nodes: 4
envs: {TP: 2}
setup: pip install megatron-core
run: |
  HEAD=$(echo "$SKYPILOT_NODE_IPS" | head -n1)
  torchrun --nnodes=$(echo "$SKYPILOT_NODE_IPS" | wc -l) --nproc_per_node=$SKYPILOT_NUM_GPUS_PER_NODE --node_rank=$SKYPILOT_NODE_RANK \\
    --master_addr=$HEAD pretrain_gpt.py --tensor-model-parallel-size $TP MODEL
"""


def job(folder: Path, text: str, command: str = "", num_gpus: int | None = None, **given_too: Any) -> TrainingJob:
    """The job of a YAML text with a command in it."""
    file = folder / "run.yaml"
    file.write_text(text.replace("COMMAND", command).replace("MODEL", MODEL))
    return job_from_file(str(file), num_gpus, given_too)


@pytest.mark.parametrize(
    ("text", "command", "gpus"),
    [
        (
            PYTORCH,
            "torchrun --nnodes=4 --nproc_per_node=8 --node_rank=$RANK --master_addr=$MASTER_ADDR pretrain_gpt.py MODEL",
            32,
        ),
        (PYTORCH, "torchrun --nnodes=$WORLD_SIZE --nproc_per_node=8 pretrain_gpt.py MODEL", 32),
        (PYTORCH.replace("spec:\n  py", 'spec:\n  nprocPerNode: "8"\n  py'), "torchrun pretrain_gpt.py MODEL", 32),
        (MPI, "mpirun -np 16 python pretrain_gpt.py MODEL", 16),
        (MPI, "mpirun python pretrain_gpt.py MODEL", 16),
        (JOBSET, "torchrun --nnodes=4 --nproc-per-node=8 --node-rank=$JOB_COMPLETION_INDEX pretrain_gpt.py MODEL", 32),
        (JOBSET, "torchrun --nnodes=$NODES --nproc-per-node=8 pretrain_gpt.py MODEL", 32),
        (JOB, "python pretrain_gpt.py MODEL", 32),
        (
            JOB.replace("kind: Job", "kind: Deployment").replace("completions", "replicas"),
            "python pretrain_gpt.py MODEL",
            32,
        ),
        (SKY, "", 32),
    ],
)
def test_gpus_are_replicas_times_limits(text: str, command: str, gpus: int, tmp_path: Path) -> None:
    found = job(tmp_path, text, command)
    assert (found.layout.world_size, found.model.num_layers) == (gpus, 4)
    assert not any("asks for" in said for said in found.warnings)
    assert any("the command of its container is read as a script" in str(note) for note in found.assumptions)


def test_the_inner_launcher_wins_and_the_difference_is_said(tmp_path: Path) -> None:
    found = job(tmp_path, JOB, "torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py MODEL")
    assert found.layout.world_size == 16
    assert "the Job asks for 32 GPUs, and what it starts trains on 16" in found.warnings
    asked = job(tmp_path, JOB, "torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py MODEL", 64)
    assert asked.layout.world_size == 64
    assert not any("asks for" in said for said in asked.warnings)


def test_another_framework_inside(tmp_path: Path) -> None:
    command = "torchrun --nnodes=4 --nproc-per-node=8 scripts/training/run_recipe.py --recipe $RECIPE train.global_batch_size=256"
    named = JOBSET.replace(
        "command: [/bin/bash",
        "env: [{name: RECIPE, value: llama3_8b_pretrain_8gpu_h100_bf16_config}], command: [/bin/bash",
    )
    found = job(tmp_path, named, command)
    assert (found.layout.world_size, found.layout.cp, found.training.global_batch_size) == (32, 2, 256)
    other = job(tmp_path, named, command, set_variables={"RECIPE": "qwen3_8b_sft_config"})
    assert other.name == "Qwen/Qwen3-8B"


RAY = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteMany]}
---
apiVersion: ray.io/v1
kind: RayJob
metadata: {name: rl}
spec:
  entrypoint: >-
    python3 -m verl.trainer.main_ppo model_engine=megatron actor_rollout_ref.model.path=Qwen/Qwen3-8B data.train_batch_size=128
    data.max_prompt_length=1024 data.max_response_length=3072 actor_rollout_ref.actor.ppo_mini_batch_size=64
    actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=8192
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=$TP actor_rollout_ref.rollout.n=8
    trainer.nnodes=2 trainer.n_gpus_per_node=8
  runtimeEnvYAML: |
    env_vars: {TP: "4"}
  rayClusterSpec:
    headGroupSpec:
      rayStartParams: {object-store-memory: "200000000"}
      template: {spec: {containers: [{name: head, resources: {limits: {cpu: "16"}}}]}}
    workerGroupSpecs:
      - replicas: 2
        rayStartParams: {num-gpus: "8"}
        template: {spec: {containers: [{name: worker}]}}
"""


def test_ray_starts_its_entrypoint(tmp_path: Path) -> None:
    found = job(tmp_path, RAY)
    assert (found.layout.world_size, found.layout.tp, found.training.global_batch_size) == (16, 4, 512)
    assert not any("asks for" in said for said in found.warnings)
    more = job(tmp_path, RAY.replace("replicas: 2", "replicas: 3"))
    assert "the RayJob asks for 24 GPUs, and what it starts trains on 16" in more.warnings


def test_kubernetes_replaces_names_before_the_shell(tmp_path: Path) -> None:
    """$(TP) is no command; $$ is a dollar sign; a value may name the variables before it; what comes from elsewhere is not known."""
    env = "[{name: TP, value: '2'}, {name: PP, value: $(TP)}, {name: HOST, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}]"
    text = JOB.replace("command: [/bin/bash", f"env: {env}, command: [/bin/bash")
    command = "torchrun --nnodes 4 --nproc_per_node 8 --master_addr $(HOST) pretrain_gpt.py --tensor-model-parallel-size $(TP) "
    found = job(tmp_path, text, f"{command} --pipeline-model-parallel-size $$(echo $PP) MODEL")
    assert (found.layout.tp, found.layout.pp) == (2, 2)
    assert job(tmp_path, text, f"{command} MODEL", set_variables={"TP": "4"}).layout.tp == 4
    unknown = text.replace("{name: HOST", "{name: SIZE, valueFrom: {secretKeyRef: {name: s, key: k}}}, {name: HOST")
    with pytest.raises(ConfigError, match="--set SIZE="):
        job(tmp_path, unknown, f"{command} --context-parallel-size $SIZE MODEL")


def test_words_without_a_shell(tmp_path: Path) -> None:
    words = [
        "torchrun",
        "--nnodes=4",
        "--nproc_per_node=8",
        "pretrain_gpt.py",
        *MODEL.split(),
        "--tensor-model-parallel-size",
        "$(TP)",
    ]
    document = yaml.safe_load(JOB)
    container = document["spec"]["template"]["spec"]["containers"][0]
    container |= {"command": words[:2], "args": words[2:], "env": [{"name": "TP", "value": "8"}]}
    assert job(tmp_path, yaml.safe_dump(document)).layout.tp == 8


MAP = """
apiVersion: v1
kind: ConfigMap
metadata: {name: scripts}
data:
  TP: "4"
  train.sh: |
    set -e
    torchrun --nnodes 4 --nproc_per_node 8 pretrain_gpt.py MODEL --tensor-model-parallel-size $TP
---
"""


def test_a_config_map_holds_the_script(tmp_path: Path) -> None:
    mounted = JOB.replace(
        "command: [/bin/bash",
        "volumeMounts: [{name: code, mountPath: /code}], envFrom: [{configMapRef: {name: scripts}}], command: [/bin/bash",
    )
    mounted = mounted.replace(
        "{spec: {containers", "{spec: {volumes: [{name: code, configMap: {name: scripts}}], containers"
    )
    found = job(tmp_path, MAP + mounted.lstrip(), "cd /work && bash /code/train.sh")
    assert (found.layout.world_size, found.layout.tp) == (32, 4)
    with pytest.raises(ConfigError, match=r"train\.sh is another script"):
        job(tmp_path, JOB, "bash /code/train.sh")


def test_a_script_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text(f"torchrun --nnodes $1 --nproc_per_node 8 pretrain_gpt.py {MODEL}\n")
    text = SKY.split("run: |")[0] + "run: bash train.sh $SKYPILOT_NUM_NODES\n"
    assert job(tmp_path, text).layout.world_size == 32


@pytest.mark.parametrize(
    ("accelerators", "gpus"),
    [("H100:4", 16), ("H100", 4), ("{H100: 8}", 32), ("[H100:8, A100:8]", 32),
     ("null\n  any_of: [{accelerators: A100:8}, {accelerators: H100:8}]", 32)],
)  # fmt: skip
def test_accelerators_of_skypilot(accelerators: str, gpus: int, tmp_path: Path) -> None:
    text = SKY.replace("resources: {accelerators: H100:8}", f"resources:\n  accelerators: {accelerators}")
    assert job(tmp_path, text, set_variables={"TP": "1"}).layout.world_size == gpus


def test_accelerators_that_differ_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="SKYPILOT_NUM_GPUS_PER_NODE"):
        job(tmp_path, SKY.replace("H100:8", "[H100:8, A100:4]"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "apiVersion: batch/v1\nkind: Job\nspec: {template: {{ toYaml .Values.pod }}}",
            r"template of Helm.*values\.yaml",
        ),
        ("{{- if .Values.on }}\napiVersion: v1\nkind: Job\n{{- end }}", r"values\.yaml"),
        (
            "apiVersion: serving.knative.dev/v1\nkind: Service2\nspec: {}",
            "Service2.*PyTorchJob, MPIJob, RayJob, JobSet, Job",
        ),
        ("apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nspec: {}", "kind is not read"),
        ("apiVersion: v1\nkind: Service\nspec: {}", "no job with a command"),
        ("apiVersion: v1\nkind: Pod\nspec: {containers: [{name: a, image: b}]}", "no job with a command"),
        (f"{JOB}\n---{JOB.replace('one', 'two')}", r"2 jobs \(one, two\)"),
        (f"{SKY}---\n{SKY}", "2 tasks of SkyPilot"),
        ("apiVersion: v1\nkind: [", "not valid YAML"),
    ],
)
def test_what_is_refused(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        job(tmp_path, text, "torchrun --nproc_per_node 8 pretrain_gpt.py MODEL")


def test_other_files_are_not_wrappers() -> None:
    script = "#!/bin/bash\ncat <<EOF | kubectl apply -f -\napiVersion: v1\nkind: Pod\nEOF\n"
    for text in (
        script,
        script.removeprefix("#!/bin/bash\n"),
        "model: {name: x}\ntraining: {}",
        "run: 1",
        "num_layers: 2\n",
    ):
        assert not is_wrapped(text)
    assert wrapped("run: {a: 1}\nresources: {}", "a.yaml", {}) is None


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 10**20),
    st.text(max_size=6),
    st.sampled_from(["8", "$(TP)", "$$", "H100:8"]),
)
TREES = nested(LEAVES, max_leaves=6)
PATHS = ["spec", "replicas", "template", "containers", "command", "args", "env", "envFrom", "limits", "resources", "volumeMounts",
         "volumes", "nprocPerNode", "entrypoint", "rayClusterSpec", "workerGroupSpecs", "replicatedJobs", "parallelism", "run", "num_nodes",
         "accelerators", "runtimeEnvYAML", "slotsPerWorker", "Launcher", "Worker", "Master", "name", "value"]  # fmt: skip


def changed(tree: Any, name: str, value: Any) -> Any:
    """The tree with a value at every key of a name."""
    if isinstance(tree, dict):
        return {key: value if key == name else changed(below, name, value) for key, below in tree.items()}
    return [changed(below, name, value) for below in tree] if isinstance(tree, list) else tree


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([PYTORCH, MPI, JOBSET, JOB, SKY, RAY]), st.dictionaries(st.sampled_from(PATHS), TREES, max_size=3)
)
def test_random_trees_end_in_a_script_or_a_message(text: str, changes: dict[str, Any]) -> None:
    for document in yaml.safe_load_all(text):
        for name, value in changes.items():
            document = changed(document, name, value)
        with contextlib.suppress(EstimatorError):
            wrapped(yaml.safe_dump(document), "run.yaml", {})
