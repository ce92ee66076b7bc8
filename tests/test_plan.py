"""`megatron-memory plan` and `advise`: legality, launch arguments, calibration, output."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from megatron_memory_estimator import TrainingJob, estimate
from megatron_memory_estimator.cli import main
from megatron_memory_estimator.layout import Layout
from megatron_memory_estimator.planner.advise import advise
from megatron_memory_estimator.planner.changes import changed
from megatron_memory_estimator.planner.launch import megatron_lm, yaml_text
from megatron_memory_estimator.planner.launch_bridge import bridge_sections
from megatron_memory_estimator.planner.search import sampled, search
from megatron_memory_estimator.planner.space.axes import Space
from megatron_memory_estimator.planner.space.borders import generated_layout
from megatron_memory_estimator.planner.space.choices import options, precision_settings, styles
from megatron_memory_estimator.planner.space.defaults import completed
from megatron_memory_estimator.planner.space.legal import reasons
from megatron_memory_estimator.planner.space.modelled import recompute_sets
from megatron_memory_estimator.planner.space.pipelines import shapes
from megatron_memory_estimator.planner.space.points import Point, Shape, at_point
from megatron_memory_estimator.training import Training

from .helpers import FACTS, ROOT
from .test_planner import EVERY_ARCHITECTURE

SPACE = Space(
    tensor_model_parallel_size=(1, 2, 3), pipeline_model_parallel_size=(1, 2, 4), virtual_pipeline_model_parallel_size=(1, 3),
    context_parallel_size=(1, 2, 5), expert_model_parallel_size=(1, 3, 8), expert_tensor_parallel_size=(1, 2), micro_batch_size=(1, 3),
    recompute=("none", "moe_act+layernorm", "full"), precision=("bf16", "mxfp8", "tensorwise"), cp_comm_type=("p2p", "a2a"),
    use_distributed_optimizer=(True, False), use_precision_aware_optimizer=(False, True),
)  # fmt: skip


@pytest.mark.parametrize(
    "settings", [{}, {"overlap_moe_expert_parallel_comm": True}, {"moe_token_dispatcher_type": "flex"}], ids=str
)
def test_a_space_holds_every_legal_layout_and_no_other(settings: dict[str, Any]) -> None:
    """Counted one by one with the rules themselves."""
    base = TrainingJob.from_hf("Qwen/Qwen3-30B-A3B", 24, global_batch_size=24, gpu="H100", **settings)
    space = completed(SPACE, base)
    found = search(base, space, best=1)
    legal = 0
    for shape in shapes(base, space):
        if not isinstance(shape, Shape):
            continue
        points = product(
            space.tensor_model_parallel_size, space.context_parallel_size, space.expert_model_parallel_size,
            space.expert_tensor_parallel_size,
        )  # fmt: skip
        for point in (Point(*degrees) for degrees in points):
            for style in styles(space, tp=point[0] > 1, cp=point[1] > 1):
                layout = dataclasses.replace(at_point(shape.layout, point, style, moe=True), world_size=24)
                if layout.world_size % (layout.tp * layout.cp * layout.pp):
                    continue
                for micro in space.micro_batch_size:
                    count, rest = divmod(24, micro * layout.dp)
                    if rest or not count:
                        continue
                    for (_, training), option in product(recompute_sets(base, space), options(space)):
                        chosen = dataclasses.replace(
                            training,
                            micro_batch_size=micro,
                            **precision_settings(base, style.precision),
                            **option.settings(),
                        )
                        legal += not reasons(base, layout, chosen, count)
    assert found.legal == legal > 0


def test_published_pipeline_layouts_are_generated() -> None:
    """Megatron-Bridge's layout of DeepSeek-V3 on 16 x 2 chunks has its MTP alone and its loss alone at the end; no chunk of ours is
    heavier than its heaviest, and the first chunk holds dense layers too."""
    model = TrainingJob.from_hf("deepseek-ai/DeepSeek-V3", 1).model
    text = generated_layout(model, 16, 2)
    assert text is not None and text.endswith("m|L") and text.count("t") <= 61
    llama = TrainingJob.from_hf("meta-llama/Meta-Llama-3-70B", 1).model
    assert generated_layout(llama, 8, 16) is None, "fewer layers than chunks"


@pytest.mark.parametrize("name", EVERY_ARCHITECTURE)
def test_launch_arguments_give_the_same_bytes(name: str, tmp_path: Path) -> None:
    """Megatron-LM arguments, a YAML file of them and Megatron-Bridge sections, read back by the readers of `estimate`."""
    length = 1024 if "gpt2" in name else 4096
    base = TrainingJob.from_hf(name, 64, gpu="B200", seq_length=length, global_batch_size=256)
    space = Space(
        tensor_model_parallel_size=(1, 2), context_parallel_size=(1, 2), pipeline_model_parallel_size=(2, 4),
        virtual_pipeline_model_parallel_size=(1, 2), expert_model_parallel_size=(8,) if base.model.num_moe_experts else (),
        micro_batch_size=(1, 2), recompute=("none", "moe_act+layernorm", "full"), precision=("bf16", "mxfp8"), cp_comm_type=("p2p",),
        use_precision_aware_optimizer=(False, True),
    )  # fmt: skip
    for plan in sampled(base, space, 4, seed=5):
        expected = [stage.peak_allocated_bytes for stage in estimate(plan.job).stages]
        launch = megatron_lm(plan.job)
        file = tmp_path / "run.yaml"
        file.write_text(yaml_text(launch))
        jobs = [
            TrainingJob.from_megatron_args(launch.words(), 64, gpu="B200", **launch.beside),
            TrainingJob.from_megatron_args(str(file), 64, gpu="B200", **launch.beside),
            TrainingJob.from_bridge(bridge_sections(plan.job), 64, gpu="B200"),
        ]
        for job in jobs:
            assert [stage.peak_allocated_bytes for stage in estimate(job).stages] == expected
        assert all(isinstance(word, str) for word in launch.words())


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    main(list(words))
    return capsys.readouterr().out


PLAN = ("plan", "Qwen/Qwen3-8B", "--num-gpus", "16", "--gpu", "H100", "--global-batch-size", "128")


def test_the_document_of_a_plan_is_what_estimate_says(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(printed(capsys, *PLAN, "--top", "3", "--pp", "1-4", "--tp", "not:8", "--json"))
    assert document["schema"] == "megatron-memory-plan/1" and len(document["plans"]) == 3
    counts = document["counts"]
    assert counts["examined"] == counts["legal"] + sum(counts["ruled_out"].values())
    assert counts["legal"] == counts["fits"] + counts["tight"] + counts["too_large"]
    for plan in document["plans"]:
        job = TrainingJob.from_megatron_args(
            plan["launch"]["megatron_lm"], 16, gpu="H100", **plan["launch"]["settings_without_argument"]
        )
        assert [s.peak_allocated_bytes for s in estimate(job).stages] == plan["peak_of_stages_bytes"]
        assert max(plan["peak_of_stages_bytes"]) == plan["peak_allocated_bytes"]
        assert sum(plan["parts_s"].values()) == pytest.approx(plan["step_s"])
        assert plan["head_room_bytes"] >= 0


def test_the_text_of_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, *PLAN, "--top", "2", "--show", "2", "--launch", "bridge")
    assert "model.tensor_model_parallel_size=" in text and "examined" in text and "tokens/s/GPU" in text
    assert "MODEL_ARGS:" in printed(capsys, *PLAN, "--top", "1", "--launch", "yaml")
    assert "--bf16" in printed(capsys, *PLAN, "--top", "1")


def test_memory_that_may_be_used_is_limited(capsys: pytest.CaptureFixture[str]) -> None:
    room = json.loads(printed(capsys, *PLAN, "--max-memory", "40", "--head-room", "10%", "--json"))
    assert room["limit_bytes"] == 40 * 2**30 - int(40 * 2**30 * 0.1)
    assert all(plan["device_bytes"] <= room["limit_bytes"] for plan in room["plans"])
    none = printed(capsys, *PLAN, "--max-memory", "3")
    assert "no layout fits in 3.00 GiB: the one that needs least needs" in none and "--min-num-gpus" in none


def test_the_fewest_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    """A number of GPUs holds the model, and no smaller one that is tried does."""
    words = [
        "plan",
        "Qwen/Qwen3-8B",
        "--gpu",
        "A100-40GB",
        "--min-num-gpus",
        "--json",
        "--cp",
        "1",
        "--recompute",
        "none,full",
    ]
    found = json.loads(printed(capsys, *words))
    gpus = found["plans"][0]["layout"]["num_gpus"]
    assert gpus > 1 and f"the fewest GPUs: {gpus}" in found["assumptions"]
    fewer = json.loads(printed(capsys, *[w for w in words if w != "--min-num-gpus"], "--num-gpus", str(gpus // 2)))
    assert fewer["plans"] == [] and fewer["least"]["needed_bytes"] > 0


@pytest.mark.parametrize(
    "words",
    [
        ["--tp", "4", "--cp", "4", "--seq-length", "8192", "--cp-comm-type", "a2a,p2p"],  # a2a has too few groups
        ["--attention-kernel", "unfused", "--cp", "1-4"],  # not with context parallelism
        ["--optimizer-offload-fraction", "1"],  # demands the precision-aware optimizer
        ["--optimizer", "sgd"],  # without the distributed optimizer
    ],
)
def test_what_one_value_forbids_another_allows(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(
        printed(capsys, "plan", "Qwen/Qwen3-8B", "--num-gpus", "16", "--gpu", "H100", "--top", "2", *words, "--json")
    )
    assert len(found["plans"]) == 2
    assert all(plan["launch"]["megatron_lm"] for plan in found["plans"])


def test_more_gpus_are_no_shortcut_to_the_fewest(capsys: pytest.CaptureFixture[str]) -> None:
    """9, 11, 13 and 17 GPUs do not divide by tp 8; 8 do."""
    words = [
        "plan",
        "Qwen/Qwen3-8B",
        "--min-num-gpus",
        "--num-gpus",
        "1,4,8,9,11,13,17",
        "--tp",
        "8",
        "--gpu",
        "H100",
        "--json",
    ]
    found = json.loads(printed(capsys, *words))
    assert "the fewest GPUs: 8" in found["assumptions"]


def test_an_advised_change_says_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(
        capsys,
        "advise",
        "Qwen/Qwen3-30B-A3B",
        "--num-gpus",
        "16",
        "--pp",
        "2",
        "--vpp",
        "2",
        "--ep",
        "8",
        "--gpu",
        "H100",
    )
    for line in text.splitlines():
        if line.startswith("note: optimizer_cpu_offload: optimizer_cpu_offload=True"):
            assert "use_precision_aware_optimizer=True" in line
    assert (
        "use_precision_aware_optimizer=True, exp_avg_dtype=bf16, exp_avg_sq_dtype=bf16" in text
        or "bf16 moments" not in text
    )


def test_a_whole_run_is_planned_anew(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        "model: {name: Qwen/Qwen3-8B}\nparallelism: {tp: 8}\ntraining: {num_gpus: 16, global_batch_size: 64, seq_length: 8192}\n"
    )
    found = json.loads(printed(capsys, "plan", str(file), "--top", "1", "--json"))
    assert found["plans"][0]["global_batch_size"] == 64
    assert found["plans"][0]["layout"]["num_gpus"] == 16


def test_calibration(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Measured steps that are all twice as slow make plans slower, and the error smaller."""
    plain = json.loads(printed(capsys, *PLAN, "--top", "1", "--json"))["plans"][0]
    settings = {"global_batch_size": 128, "tensor_model_parallel_size": 2}
    rate = 0.7 * plain["tokens_per_s_gpu"]
    file = tmp_path / "measured.jsonl"
    lines = [
        {"model": "Qwen/Qwen3-8B", "num_gpus": 16, "gpu": "H100", "settings": {**settings, "micro_batch_size": n}, "tokens_per_s_gpu": rate}
        for n in (1, 2, 4)
    ]  # fmt: skip
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    main([*PLAN, "--top", "1", "--calibrate", str(file), "--launch", "none"])
    said = capsys.readouterr().err
    assert "calibrated with 3 measured steps" in said and "gemm x0." in said
    fitted = json.loads(printed(capsys, *PLAN, "--top", "1", "--json", "--calibrate", str(file)))["plans"][0]
    assert fitted["step_s"] > plain["step_s"]


def test_an_interrupt_prints_the_best_so_far() -> None:
    tool = str(Path(sys.executable).with_name("megatron-memory"))
    words = ["plan", "deepseek-ai/DeepSeek-V3", "--num-gpus", "256", "--gpu", "B200", "--complete", "--launch", "none"]
    process = subprocess.Popen([tool, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(3)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    assert "examined" in out


ADVICE: list[tuple[str, int, dict[str, Any]]] = [
    ("Qwen/Qwen3-8B", 8, {"tensor_model_parallel_size": 2, "seq_length": 32768, "global_batch_size": 64}),
    ("Qwen/Qwen3-30B-A3B", 8, {"expert_model_parallel_size": 8, "micro_batch_size": 8, "global_batch_size": 512}),
    ("meta-llama/Meta-Llama-3-70B", 32, {"tensor_model_parallel_size": 8, "global_batch_size": 128}),
]


@pytest.mark.parametrize(("name", "gpus", "settings"), ADVICE)
def test_advice_is_what_estimate_says_of_the_changed_run(name: str, gpus: int, settings: dict[str, Any]) -> None:
    job = TrainingJob.from_hf(name, gpus, gpu="H100", **settings)
    found = advise(job)
    assert not found.faster and found.outcomes
    assert found.now.enough > found.limit
    for one in found.outcomes:
        values = {key: value for change in one.changes for key, value in change.settings}
        again = estimate(changed(job, values))
        assert again.peak_stage.peak_allocated_bytes == one.peak
        assert one.enough == max(stage.enough_bytes for stage in again.stages)
    if any(one.enough <= found.limit for one in found.outcomes):
        assert all(one.verdict(found.limit) == "fits" for one in found.outcomes)


def test_advice_for_a_run_with_room_makes_it_faster(capsys: pytest.CaptureFixture[str]) -> None:
    job = TrainingJob.from_hf("Qwen/Qwen3-8B", 8, gpu="H200", tensor_model_parallel_size=4, global_batch_size=64)
    found = advise(job)
    assert found.faster and found.outcomes
    assert all(one.time.step < found.now.time.step and one.enough <= found.limit for one in found.outcomes)
    words = ("advise", "Qwen/Qwen3-8B", "--num-gpus", "8", "--gpu", "H200", "--tp", "4", "--global-batch-size", "64")
    assert "make it faster" in printed(capsys, *words)
    document = json.loads(printed(capsys, *words, "--json"))
    assert document["purpose"] == "faster" and document["advice"][0]["step_s"] == pytest.approx(
        found.outcomes[0].time.step
    )


def advised_in_the_docs() -> list[str]:
    return re.findall(r"<!-- run: megatron-memory (advise .+?) -->", (ROOT / "docs" / "advise.md").read_text())


@pytest.mark.parametrize("command", advised_in_the_docs())
def test_advice_in_the_docs_holds(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each advised run again through `estimate` of its own: the settings of the command with those of the advice on top."""
    words = shlex.split(command)
    document = json.loads(printed(capsys, *words, "--json"))
    assert document["purpose"] == ("faster" if "Qwen3-8B" in command else "fit") and document["advice"]
    if document["purpose"] == "fit":
        assert document["now"]["verdict"] != "fits"
    base = json.loads(printed(capsys, "estimate", *words[1 : words.index("--top")], "--json"))
    for one in document["advice"][:3]:
        settings = {key: value for change in one["changes"] for key, value in change["settings"].items()}
        env = {key: settings.pop(key) for key in list(settings) if key == "expandable_segments"}
        layout = {**base["layout"], **base["training"], **settings}
        known = {f.name for part in (Layout, Training) for f in dataclasses.fields(part)} - {"world_size"}
        given = {key: value for key, value in layout.items() if key in known and value is not None}
        if given.get("tensor_model_parallel_size") == 1:
            given["sequence_parallel"] = False
        if given.get("pipeline_model_parallel_layout") or given.get("virtual_pipeline_model_parallel_size") == 1:
            given.pop("virtual_pipeline_model_parallel_size", None)
        job = TrainingJob.from_hf(
            words[1],
            settings.get("world_size", base["layout"]["world_size"]),
            gpu=words[words.index("--gpu") + 1],
            env=env,
            **given,
        )
        again = estimate(job)
        assert again.peak_stage.peak_allocated_bytes == one["peak_allocated_bytes"]
        assert max(stage.enough_bytes for stage in again.stages) == one["device_bytes"]


def test_published_layouts_beside_the_first_choice() -> None:
    """All are legal, three quarters are within 15 % of the first choice; two cheap rows are computed again."""
    rows = {one["id"]: one for one in map(json.loads, (FACTS / "published_plans.jsonl").read_text().splitlines())}
    assert sum(abs(one["gap"]) <= 0.15 for one in rows.values()) >= 0.75 * len(rows)
    assert all(one["why"] for one in rows.values() if one["gap"] > 0.15)
    spec = importlib.util.spec_from_file_location("plan_published", ROOT / "scripts" / "plan_published.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    records = {one["id"]: one for one in script.published()}
    assert set(records) == set(rows)
    for name in (
        "card-qwen3-8b-pretrain-h100",
        "doc-26-08-nemotron-3-nano-pretrain-8-gb300-fp8mx-mbs4-gbs512-tp1pp1cp1vp1ep8",
    ):
        assert script.compared(records[name]) == rows[name]
