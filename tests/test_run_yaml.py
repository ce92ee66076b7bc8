"""YAML files of Megatron-LM arguments, read as the runners read them: Megatron-LM's own test runner, and MoE-ModelZoo's."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_memory_estimator import ConfigError, TrainingJob
from megatron_memory_estimator.errors import EstimatorError, QuestionsError
from megatron_memory_estimator.inputs.megatron.files import filled, from_document
from megatron_memory_estimator.inputs.runs.files import job_from_file, job_from_text

SMALL = """
  --num-layers: 8
  --hidden-size: 512
  --num-attention-heads: 8
  --seq-length: 1024
  --max-position-embeddings: 1024
  --micro-batch-size: 2
  --global-batch-size: 64
  --tokenizer-type: NullTokenizer
  --vocab-size: 32000
  --bf16: true
"""
ZOO = """
ENV_VARS:
  NCCL_NVLS_ENABLE: 0
  WORLD: ${OUTSIDE}
MODEL_ARGS:
  --tensor-model-parallel-size: ${TP}
  --pipeline-model-parallel-size: ${PP:-1}
  --expert-model-parallel-size: $EP
  --expert-tensor-parallel-size: 1
  --sequence-parallel: true
  --use-distributed-optimizer: true
  --num-layers: ${NUM_LAYERS}
  --hidden-size: 2048
  --ffn-hidden-size: 6144
  --num-attention-heads: 32
  --group-query-attention: true
  --num-query-groups: 4
  --kv-channels: 128
  --max-position-embeddings: 40960
  --seq-length: ${SEQ_LEN}
  --position-embedding-type: rope
  --normalization: RMSNorm
  --swiglu: true
  --disable-bias-linear: true
  --untie-embeddings-and-output-weights: true
  --num-experts: 128
  --moe-ffn-hidden-size: 768
  --moe-router-topk: 8
  --moe-grouped-gemm: ${GROUPED}
  --moe-token-dispatcher-type: alltoall
  --moe-router-force-load-balancing: true
  --micro-batch-size: ${MBS}
  --global-batch-size: ${GBS}
  --tokenizer-type: HuggingFaceTokenizer
  --tokenizer-model: Qwen/Qwen3-30B-A3B
  --make-vocab-size-divisible-by: 1187
  --data-path: ${DATA_PATH}
  --data-cache-path: ${WORKSPACE}/cache
  --load: ${LOAD_PATH}
  --finetune: false
  --log-num-zeros-in-grad: false
  --bf16: true
"""
ZOO_VALUES = {"TP": "1", "EP": "8", "SEQ_LEN": "4096", "MBS": "1", "GBS": "256", "NUM_LAYERS": "48"}


def job_of(tmp_path: Path, text: str, gpus: int | None = None, **settings: Any) -> TrainingJob:
    path = tmp_path / "case.yaml"
    path.write_text(text)
    return job_from_file(str(path), gpus, settings)


def test_sizes_that_come_from_outside_are_asked_for_together_and_paths_are_not(tmp_path: Path) -> None:
    with pytest.raises(QuestionsError) as error:
        job_of(tmp_path, ZOO)
    said = str(error.value)
    for name in (*ZOO_VALUES, "GROUPED"):
        assert f"--set {name}=" in said
    for name in ("DATA_PATH", "WORKSPACE", "LOAD_PATH", "OUTSIDE", "PP"):
        assert f"${name}" not in said and f"--set {name}=" not in said
    assert len(error.value.questions) == 7


@pytest.mark.parametrize("grouped", ["true", "false"])
def test_variables_fill_a_file_and_false_leaves_a_key_out(tmp_path: Path, grouped: str) -> None:
    job = job_of(tmp_path, ZOO, 32, set_variables={**ZOO_VALUES, "GROUPED": grouped})
    assert (job.layout.tp, job.layout.pp, job.layout.ep, job.layout.dp) == (1, 1, 8, 32)
    assert job.training.moe_grouped_gemm is (grouped == "true") and job.training.routing_phase == "forced_balance"
    assert job.model.num_layers == 48 and job.model.padded_vocab(1) == 151936
    assert job_from_text(ZOO, 32, {"set_variables": {**ZOO_VALUES, "GROUPED": grouped}}, lambda name: None).model == (  # type: ignore[arg-type,return-value]
        job.model
    )


def test_the_last_of_two_equal_keys_counts_and_is_said(tmp_path: Path) -> None:
    text = (
        f"MODEL_ARGS:{SMALL}  --tensor-model-parallel-size: 1\n  --log-interval: 1\n  --tensor-model-parallel-size: 2\n"
    )
    job = job_of(tmp_path, text)
    assert job.layout.tp == 2
    assert "keys that stand twice, of which the last counts: --tensor-model-parallel-size" in job.warnings
    with pytest.raises(ConfigError, match='the key "tp" appears twice'):
        job_of(tmp_path, "model: {name: Qwen/Qwen3-8B}\nparallelism: {tp: 1, tp: 2}\n", 8)


def test_several_words_in_one_value(tmp_path: Path) -> None:
    more = """
  --context-parallel-size: 4
  --cp-comm-type: a2a+p2p
  --hierarchical-context-parallel-sizes: "2 2"
  --num-experts: 16
  --moe-layer-freq: ([0]*2+[1]*6)
  --recompute-granularity: selective
  --recompute-modules: "[moe_act layernorm]"
  --attention-softmax-in-fp32: 'true'
  --num-query-groups: "None"
  --normalization: RMSNorm
"""
    job = job_of(tmp_path, f"ENV_VARS: {{NUM_NODES: 2}}\nMODEL_ARGS:{SMALL.rstrip()}{more}")
    assert job.layout.world_size == 16
    assert job.training.recompute_modules == ("moe_act", "layernorm") and job.training.attention_softmax_in_fp32
    assert job.model.moe_layer_freq == "([0]*2+[1]*6)"
    listed = job_of(
        tmp_path, f"ENV_VARS: {{NUM_NODES: 2}}\nMODEL_ARGS:{SMALL.rstrip()}{more}".replace('"2 2"', "[2, 2]")
    )
    assert listed.layout == job.layout


@pytest.mark.parametrize(
    ("head", "gpus", "said"),
    [
        ("ENV_VARS: {GPUS_PER_NODE: 4}", 4, "num_gpus as in"),
        ("ENV_VARS: {NUM_NODES: 2}", 16, "8 a node, as in Megatron-LM's test runner"),
        ("ENV_VARS: {NUM_NODES: '${NODES}'}", 32, "num_gpus as in"),
        ("TEST_TYPE: regular", 8, "one node of Megatron-LM's test runner"),
    ],
)
def test_gpus_of_a_runner(tmp_path: Path, head: str, gpus: int, said: str) -> None:
    job = job_of(tmp_path, f"{head}\nMODEL_ARGS:{SMALL}", set_variables={"NODES": "4"})
    assert job.layout.world_size == gpus and any(said in note for note in job.assumptions)


def test_without_a_runner_the_smallest_legal_number_is_taken(tmp_path: Path) -> None:
    job = job_of(tmp_path, SMALL.replace("\n  ", "\n") + "--tensor-model-parallel-size: 2\n")
    assert job.layout.world_size == 2
    assert (
        "num_gpus not given: 2, the smallest legal count, which is the worst case; --num-gpus sets it"
        in job.assumptions
    )
    larger = job_of(
        tmp_path, f"MODEL_ARGS:{SMALL}  --tensor-model-parallel-size: 4\n  --pipeline-model-parallel-size: 4\n"
    )
    assert larger.layout.world_size == 16


def test_a_second_run_and_merged_keys(tmp_path: Path) -> None:
    text = f"COMMON: &common{SMALL}MODEL_ARGS:\n  <<: *common\n  --tensor-model-parallel-size: 2\nMODEL_ARGS_2:\n  <<: *common\n"
    job = job_of(tmp_path, text)
    assert job.layout.tp == 2 and "MODEL_ARGS_2, a run of its own, is not read" in job.warnings


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("trainer: {devices: 8}\nmodel: {num_layers: 2}", "a run of NeMo"),
        (
            "model: {seq_length: 64}\ntrain: {train_iters: 3}\nddp: {}",
            "override file of Megatron-Bridge .*its model is not known; .*--model NAME",
        ),
        ("MODEL_ARGS: [1]", "MODEL_ARGS must hold arguments"),
        ("ENV_VARS: 3\nMODEL_ARGS: {--bf16: true}", "ENV_VARS must hold variables"),
    ],
)
def test_files_of_others_are_named(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(EstimatorError, match=sentence):
        job_of(tmp_path, text)


def test_variables_in_a_text() -> None:
    given = {"A": "1", "E": ""}
    assert filled("${A}$A-${E:-5}-${E-6}-${N:-7}-$5", given) == "11-5--7-$5"
    assert filled("plain", given) == "plain" and filled("${A", given) == "${A"
    with pytest.raises(ConfigError, match="is longer than"):
        filled("$A" * 100, {"A": "x" * 10_000})


VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20),
        st.sampled_from(["${A}", "$B:-x", "${C:-${D}}", "[a b]", "[[", "(x)", "2 2", "null", "None", "\0$x\0", "${}", "--bf16"]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=4,
)  # fmt: skip
KEYS = st.one_of(
    st.sampled_from(
        ["--num-layers", "--bf16", "--load", "--recompute-modules", "--moe-layer-freq", "--lora-r", "--made-up", "--noop-layers",
         "--num-layer-list", "--first-k-dense-replace", "--n-shared-experts", "--step-batch-size-schedule", "--tokenizer-model",
         "--extra-vocab-size", "--checkpoint-activations", "--stage", "micro_batch_size", "--"]
    ),
    st.text(max_size=10),
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(KEYS, VALUES, max_size=6), st.dictionaries(st.sampled_from("ABCD"), st.text(max_size=9)))
def test_no_document_crashes_the_reader(args: dict[str, Any], variables: dict[str, str]) -> None:
    document = {"MODEL_ARGS": args, "ENV_VARS": {"GPUS_PER_NODE": "${A}", "B": 3}}
    found = from_document(document, "case.yaml", variables, ignore_unknown=True)
    assert found.words.notes is not None
    with contextlib.suppress(EstimatorError):
        TrainingJob.from_megatron_args({"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, **args}, 8)
