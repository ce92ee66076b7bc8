"""Vision and audio towers: language models inside nested configs, and what a verdict says of a tower that is not counted."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from megatron_memory_estimator import (
    ConfigError,
    LayoutError,
    TrainingJob,
    UnsupportedError,
    advise,
    count_parameters,
    estimate,
)
from megatron_memory_estimator.inputs.catalog import entries
from megatron_memory_estimator.inputs.hf import load
from megatron_memory_estimator.inputs.hf.convert import convert
from megatron_memory_estimator.inputs.runs.files import job_from_text
from megatron_memory_estimator.job.tower import Block, HfTower, Sound, Tower, TowerTraining, Weight, counted, lacking
from megatron_memory_estimator.job.training_job import with_settings
from megatron_memory_estimator.modules.context import Context
from megatron_memory_estimator.modules.hf_tower import images
from megatron_memory_estimator.modules.layers import tower_params
from megatron_memory_estimator.modules.vision_tower import how, inputs, seen
from megatron_memory_estimator.planner.changes import memory_changes
from megatron_memory_estimator.planner.planning import plan as planned
from megatron_memory_estimator.planner.search import sampled
from megatron_memory_estimator.planner.space.axes import Space
from megatron_memory_estimator.rank.chunks import Run
from megatron_memory_estimator.report.document import estimate_document as document
from megatron_memory_estimator.report.summary import estimate_summary
from megatron_memory_estimator.report.verdict import verdict_text
from megatron_memory_estimator.tape.ops import Op, flattened
from megatron_memory_estimator.tape.tensor import Param
from megatron_memory_estimator.tape.work import Streamed
from megatron_memory_estimator.throughput import throughput

from .helpers import FACTS, context, records
from .test_planner import same_figures

Config = dict[str, Any]
SOME = {"depth": 2}


def config(name: str, **changes: Any) -> Config:
    return {**entries()[name]["config"], **changes}


OMNI: Config = {
    "model_type": "qwen3_omni_moe", "talker_config": {"hidden_size": 8},
    "thinker_config": {
        "model_type": "qwen3_omni_moe_thinker", "vision_config": SOME, "audio_config": SOME,
        "text_config": config("Qwen/Qwen3-30B-A3B", model_type="qwen3_omni_moe_text"),
    },
}  # fmt: skip
MISTRAL, GLM, EXAONE = "mistralai/Mistral-Small-24B-Base-2501", "zai-org/GLM-4.5-Air", "LGAI-EXAONE/EXAONE-4.0-32B"
NEMOTRON = "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"


def thinker(name: str, kind: str) -> Config:
    return {"thinker_config": {"audio_config": SOME, "text_config": config(name, model_type=kind)}}


def seeing(name: str, **changes: Any) -> Config:
    return {"vision_config": SOME, "text_config": config(name, **changes)}


NESTED = [
    (OMNI, "Qwen/Qwen3-30B-A3B", ["vision tower", "audio tower"]),
    (thinker("Qwen/Qwen2.5-7B", "qwen2_5_omni_text"), "Qwen/Qwen2.5-7B", ["audio tower"]),
    (thinker("Qwen/Qwen3-0.6B", "qwen3_asr_text"), "Qwen/Qwen3-0.6B", ["audio tower"]),
    (seeing(MISTRAL), MISTRAL, ["vision tower"]),
    (seeing(GLM, model_type="glm4v_moe_text"), GLM, ["vision tower"]),
    (seeing(EXAONE, model_type="exaone4_5_text"), EXAONE, ["vision tower"]),
    (
        {"vision_config": SOME, "sound_config": SOME, "llm_config": config(NEMOTRON)},
        NEMOTRON,
        ["vision tower", "sound tower"],
    ),
]
"""A config, the model that its language model is, and its towers."""


@pytest.mark.parametrize(("outer", "inner", "towers"), NESTED, ids=[inner for _, inner, _ in NESTED])
def test_a_language_model_is_the_same_inside_and_alone(outer: Config, inner: str, towers: list[str]) -> None:
    found, alone = TrainingJob.from_hf(outer).model, TrainingJob.from_hf(inner).model
    assert count_parameters(found).total == count_parameters(alone).total
    assert [tower.name for tower in found.towers] == towers


def test_glm_45v_has_no_mtp_layer() -> None:
    assert TrainingJob.from_hf(GLM).model.mtp == 1
    assert TrainingJob.from_hf(seeing(GLM, model_type="glm4v_moe_text")).model.mtp == 0


def test_what_stands_around_a_language_model_may_change_what_it_is() -> None:
    """EXAONE 4.5 leaves RoPE out of layers that have it in EXAONE 4, whose name its text_config has."""
    found = convert({"model_type": "exaone4_5", **seeing(EXAONE, model_type="exaone4")}, "x", "t")
    assert found.model_type == "exaone4_5_text"
    assert "no_rope" in found.config["layer_variants"] and not found.refusal


def test_what_speaks_is_named_as_not_counted() -> None:
    assert (
        "talker_config is not counted: Megatron-Bridge trains what reads and writes text"
        in convert(OMNI, "x", "t").warnings
    )


def test_a_pattern_as_a_list_of_kinds_is_the_pattern() -> None:
    name = NEMOTRON
    kinds = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
    listed = config(name)
    del listed["num_hidden_layers"]
    listed["layers_block_type"] = [kinds[symbol] for symbol in listed.pop("hybrid_override_pattern")]
    assert (
        TrainingJob.from_hf(listed).model.hybrid_layer_pattern == TrainingJob.from_hf(name).model.hybrid_layer_pattern
    )
    listed["layers_block_type"][-1] = "conv"
    with pytest.raises(
        ConfigError,
        match=r"has the kind 'conv'; known are linear_attention, full_attention, mlp, moe, mamba or attention",
    ):
        TrainingJob.from_hf(listed)
    del listed["layers_block_type"]
    with pytest.raises(ConfigError, match="num_hidden_layers"):
        TrainingJob.from_hf(listed)


@pytest.mark.parametrize(
    "broken", [{"thinker_config": 3}, {"thinker_config": {"text_config": []}}, {"text_config": "x"}]
)
def test_an_inner_key_that_holds_no_object_is_refused(broken: Config) -> None:
    with pytest.raises(ConfigError, match="must be an object"):
        convert(broken, "x", "t")


def test_two_pools_of_experts_are_refused_with_the_reason() -> None:
    text = config("baidu/ERNIE-4.5-21B-A3B-PT")
    del text["model_type"]
    with pytest.raises(UnsupportedError, match="two pools of experts"):
        convert({"model_type": "ernie4_5_vl_moe", "text_config": text}, "x", "t")


def test_a_verdict_says_which_tower_it_is_without() -> None:
    found = estimate(TrainingJob.from_hf(OMNI, num_gpus=8, ep=8))
    said = "the language model alone: its vision tower and its audio tower are not counted"
    assert verdict_text(found.verdict(), found).endswith(f" T{said[1:]}.")
    assert document(found)["verdict"]["not_counted"] == said
    assert said in json.dumps(estimate_summary(found))
    assert found.table()[0]["run_not_counted"] == said


def test_a_model_without_towers_lacks_nothing() -> None:
    found = estimate(TrainingJob.from_hf("Qwen/Qwen3-0.6B", num_gpus=1))
    assert document(found)["verdict"]["not_counted"] is None
    assert "counted" not in verdict_text(found.verdict(), found)


def test_behind_a_tower_the_whole_embedding_stays() -> None:
    """The rows of the tower are put into the whole output, of which each rank's part is a view."""
    text = config("Qwen/Qwen3-0.6B")
    alone, behind = (
        estimate(TrainingJob.from_hf(one, num_gpus=2, tp=2, seq_length=1024)).stages[0].rank.plans[0].saved_bytes
        for one in (text, seeing("Qwen/Qwen3-0.6B"))
    )
    assert behind - alone == 1024 * 1024 * 2 // 2


RECORDS = records("towers.json")
QWEN, MINISTRAL = "Qwen/Qwen3-VL-8B-Instruct", "mistralai/Ministral-3-8B-Instruct-2512"


def parameters(model: str | Config, **settings: Any) -> list[int]:
    """Dense parameters of every stage."""
    given = {"num_gpus": 8, "seq_length": 1024, **settings}
    return [stage.num_parameters[0] for stage in estimate(TrainingJob.from_hf(model, **given)).stages]


def alone(model: str) -> Config:
    """The same without its tower's config, so that the tower is not counted."""
    return {key: value for key, value in config(model).items() if key != "vision_config"}


@pytest.mark.parametrize("record", RECORDS, ids=[record["model"] for record in RECORDS])
def test_a_tower_has_the_parameters_of_its_class(record: dict[str, Any]) -> None:
    model = TrainingJob.from_hf(record["model"]).model
    (tower,) = model.towers
    assert tower.num_parameters == record["total"]
    assert count_parameters(model).total == record.get("published", count_parameters(model).total)
    if "tp2" in record:
        whole, half = parameters(record["model"]), parameters(record["model"], tp=2)
        rest, rest_half = parameters(alone(record["model"])), parameters(alone(record["model"]), tp=2)
        assert (whole[0] - rest[0], half[0] - rest_half[0]) == (record["total"], record["tp2"])


def test_glm_45v_and_qwen25_vl_are_counted_in_either_form_of_their_files() -> None:
    """107,710,933,120 and 8,292,166,656 are published: of GLM-4.5V with 45 biases of its routers, which are no parameters here."""
    seen = {
        "depth": 24,
        "hidden_size": 1536,
        "intermediate_size": 10944,
        "num_heads": 12,
        "image_size": 336,
        "patch_size": 14,
    }
    glm = {
        "model_type": "glm4v_moe", "vision_config": {**seen, "out_hidden_size": 4096},
        "text_config": config(GLM, model_type="glm4v_moe_text"),
    }  # fmt: skip
    assert count_parameters(TrainingJob.from_hf(glm).model).total == 107_710_933_120 - 45 * 128
    flat = config("Qwen/Qwen2.5-7B", model_type="qwen2_5_vl") | {
        "vision_config": {
            "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "in_chans": 3, "out_hidden_size": 3584,
            "patch_size": 14, "spatial_patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "tokens_per_second": 2,
            "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31],
        },
    }  # fmt: skip
    assert count_parameters(TrainingJob.from_hf(flat).model).total == 8_292_166_656


def test_a_tower_stands_on_the_first_stage_alone_and_says_what_is_missing() -> None:
    more = [a - b for a, b in zip(parameters(QWEN, pp=4), parameters(alone(QWEN), pp=4), strict=True)]
    assert more == [576_388_336, 0, 0, 0]
    found = estimate(TrainingJob.from_hf(QWEN, num_gpus=8))
    said = "The activations of its vision tower are not counted; --images counts them."
    assert verdict_text(found.verdict(), found).endswith(said)


def test_positions_of_a_model_with_a_tower_are_not_fused() -> None:
    """mrope and yarn: query and key keep cos and sin of each layer (Megatron-Bridge `utils/fusions.py`)."""
    settings: dict[str, Any] = {"num_gpus": 8, "seq_length": 1024}
    some = estimate(TrainingJob.from_hf(QWEN, **settings)).stages[0].rank.plans[0]
    fused = estimate(TrainingJob.from_hf(QWEN, apply_rope_fusion=True, **settings)).stages[0].rank.plans[0]
    assert some.saved_bytes - fused.saved_bytes == 36 * 4 * 1024 * 128 * 2


def test_a_frozen_tower_has_weights_and_nothing_else() -> None:
    both = {"freeze_vision_model": True, "freeze_vision_projection": True}
    cases: dict[str, dict[str, Any]] = {"trained": {}, "frozen": both, "layers": {"freeze_vision_model": True}}
    shares = {
        name: estimate(TrainingJob.from_hf(MINISTRAL, num_gpus=8, **settings)).stages[0].breakdown_bytes
        for name, settings in cases.items()
    }
    projection = 1024 + 4 * 1024 * 1024 + 1024 * 4096 + 4096 * 4096
    assert shares["trained"]["gradients"] - shares["frozen"]["gradients"] == pytest.approx(4 * 428_472_320, rel=1e-6)
    assert shares["trained"]["gradients"] - shares["layers"]["gradients"] == pytest.approx(
        4 * (428_472_320 - projection), rel=1e-6
    )
    assert shares["trained"]["weights"] == pytest.approx(shares["frozen"]["weights"], rel=1e-6)


def test_adapters_stand_beside_the_linears_of_megatron_s_own_towers_alone() -> None:
    """Megatron-Bridge finds linears by their names, in a frozen tower too; those of huggingface/transformers have other names."""
    for model, adapted in ((QWEN, True), (MINISTRAL, False)):
        for frozen in (False, True):
            given: dict[str, Any] = {"num_gpus": 8, "peft": "lora", "image_tokens": 1024, "freeze_vision_model": frozen}
            run = estimate(TrainingJob.from_hf(model, **given)).stages[0].rank.plans[0].runs[0]
            assert any(".adapter." in param.name for param in run.params) == adapted
            assert bool(run.trace.saved_bytes) == adapted


def test_a_frozen_language_model_keeps_what_leads_back_to_its_tower() -> None:
    """As behind adapters: no input of a frozen linear, and everything that an input's gradient needs."""
    given: dict[str, Any] = {"num_gpus": 8, "tp": 2, "pp": 2, "image_tokens": 1024}
    trained, frozen = (
        estimate(TrainingJob.from_hf(QWEN, freeze_language_model=on, **given)).stages for on in (False, True)
    )
    assert frozen[1].breakdown_bytes["gradients"] == frozen[1].breakdown_bytes["optimizer"] == 0
    assert frozen[1].breakdown_bytes["weights"] == trained[1].breakdown_bytes["weights"]
    assert frozen[0].breakdown_bytes["gradients"] == pytest.approx(4 * 290_523_064, rel=1e-3)
    # qkv, proj, fc1, fc2: a token's bytes of a rank, times tokens
    linears = (4096 + 4096 // 2 + 4096 + 12288 // 2) * 2 * 4096
    layer, less = (stages[1].rank.plans[0].runs[0].trace.saved_bytes for stages in (trained, frozen))
    assert 0 < layer - less <= linears
    alone: dict[str, Any] = dict.fromkeys(
        ("freeze_language_model", "freeze_vision_model", "freeze_vision_projection"), True
    )
    with pytest.raises(ConfigError, match="leaves nothing to train"):
        estimate(TrainingJob.from_hf(QWEN, **alone, **given))
    with pytest.raises(ConfigError, match="leaves nothing to train"):
        estimate(TrainingJob.from_hf("Qwen/Qwen3-8B", num_gpus=8, freeze_language_model=True))


def test_heads_of_a_tower_divide_over_tensor_parallel_ranks() -> None:
    with pytest.raises(
        LayoutError, match=r"heads of the vision tower=16 is not divisible by tensor_model_parallel_size=32"
    ):
        estimate(TrainingJob.from_hf(QWEN, num_gpus=32, tp=32))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"extra_heads": 3}, "stand keys that nothing here reads: extra_heads"),
        ({"depth": "x"}, "depth='x' in config.json must be a whole number"),
        ({"depth": None}, "config.json has no depth"),
        ({"depth": 10**9}, "at most 1000"),
        ({"out_hidden_size": 5}, "is not the language model's hidden_size=4096"),
        ({"num_heads": 7}, "is not divisible by num_heads=7"),
        ({"deepstack_visual_indexes": 3}, "must be a list"),
        ({1: 2}, "must be words"),
    ],
)
def test_a_tower_that_is_not_understood_is_not_counted_and_says_why(change: dict[Any, Any], said: str) -> None:
    whole = config(QWEN)
    found = convert({**whole, "vision_config": {**whole["vision_config"], **change}}, "x", "t")
    assert [tower.blocks for tower in found.towers] == [()]
    assert any(said in warning and "not counted" in warning for warning in found.warnings)


KEPT = json.loads((FACTS / "towers.json").read_text())["kept"]["records"]


@pytest.mark.parametrize("record", KEPT, ids=lambda record: f"tp{record['tp']}-{record.get('settings', {})}")
def test_a_tower_keeps_what_its_class_keeps(record: dict[str, Any]) -> None:
    """Equal but for a few numbers of the random state and of where images begin."""
    model = QWEN if record.get("deepstack", True) else "Qwen/Qwen3.5-9B"
    given = {
        "num_gpus": 8,
        "seq_length": 2048,
        "image_tokens": record.get("patches", 4096) // 4,
        **record.get("settings", {}),
    }
    found = estimate(TrainingJob.from_hf(model, tp=record["tp"], **given))
    run = found.stages[0].rank.plans[0].runs[0]
    assert run.unit.name == "vision tower"
    assert 0 <= record["total_saved_bytes"] - run.trace.saved_bytes < 1024
    adapters = sum(param.numel for param in run.params if ".adapter." in param.name)
    assert adapters == sum(param.numel for param in run.params if not param.frozen and record.get("trainable"))
    assert adapters == record.get("trainable", 0)
    assert not found.verdict().not_counted


RADIO = json.loads((FACTS / "towers.json").read_text())["radio"]["records"]


def nemotron(kind: str, **vision: Any) -> Config:
    """A config of Nemotron VL or Omni around a language model of the catalogue; Megatron-Bridge reads nothing else of RADIO."""
    return {"model_type": kind, "vision_config": {"version": "a word", **vision}, "llm_config": config(NEMOTRON)}


@pytest.mark.parametrize("record", RADIO, ids=lambda record: f"{record['kind']} tp{record['tp']}-{record.get('peft')}")
def test_radio_keeps_what_its_class_keeps(record: dict[str, Any]) -> None:
    """Equal but for a few numbers of the random state and of where tiles begin. The projector's second linear, and the adapter beside it,
    are as wide as the language model."""
    peft = record.get("peft", "none")
    job = TrainingJob.from_hf(
        nemotron(record["kind"]), num_gpus=8, tp=record["tp"], image_tokens=256 * record["tiles"], peft=peft
    )
    run = estimate(job).stages[0].rank.plans[0].runs[0]
    assert run.unit.name == "vision tower"
    assert 0 <= record["total_saved_bytes"] - run.trace.saved_bytes < 1024
    narrower = job.model.hidden_size - record["hidden_size"]
    own = sum(param.numel for param in run.params if ".adapter." not in param.name)
    assert own == record["parameters"] + narrower * 20480 // record["tp"]
    if peft != "none":
        adapters = sum(param.numel for param in run.params if not param.frozen)
        assert adapters == record["trainable"] + narrower * 32 // record["tp"]


def test_pairs_of_video_frames_have_an_embedder_of_their_own() -> None:
    """A matrix of 1280 x (2 x 3 x 16 x 16) beside that of images (`vision/radio.py`, separate_video_embedder)."""
    kind = "NemotronH_Nano_Omni_Reasoning_V3"
    one, two = (
        TrainingJob.from_hf(nemotron(kind, **keys)).model.towers[0].num_parameters
        for keys in ({}, {"separate_video_embedder": True, "video_temporal_patch_size": 2})
    )
    assert two - one == 1280 * 2 * 3 * 16 * 16


PARAKEET = {
    "model_type": "parakeet", "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 8, "intermediate_size": 4096,
    "num_mel_bins": 128, "subsampling_factor": 8, "projection_hidden_size": 4096, "convolution_bias": False,
}  # fmt: skip


def test_parakeet_has_the_parameters_of_its_class() -> None:
    """And a projector: a norm, fc1 of 4096 x 1024 and fc2 of 2688 x 4096, split over tensor-parallel ranks."""
    fact = json.loads((FACTS / "towers.json").read_text())["parakeet"]
    outer = {**nemotron("NemotronH_Nano_Omni_Reasoning_V3"), "sound_config": PARAKEET}
    job = TrainingJob.from_hf(outer, num_gpus=8, tp=2, freeze_audio_model=True, image_tokens=256)
    sound = job.model.towers[1]
    assert {block.name: Tower("", (block._replace(copies=1),)).num_parameters for block in sound.blocks} == {
        "subsampling": fact["outside"], "layers": fact["layer"], "sound_projection.encoder": 1024 + 4096 * (1024 + 2688),
    }  # fmt: skip
    assert {block.copies for block in sound.blocks} == {1, 24}
    frozen = [p for p in tower_params(context(job), sound) if isinstance(p, Param)]
    assert all(param.frozen for param in frozen)
    halved = 4096 * (1024 + 2688) // 2
    assert sum(param.numel for param in frozen) == sound.num_parameters - halved
    assert not estimate(job).verdict().not_counted


def test_what_parakeet_computes_is_not_counted_and_said() -> None:
    outer = {**nemotron("NemotronH_Nano_Omni_Reasoning_V3"), "sound_config": PARAKEET}
    job = TrainingJob.from_hf(outer, num_gpus=8, image_tokens=256, audio_tokens=100)
    assert "audio_tokens has no effect: what the sound tower computes is not counted" in job.warnings
    assert "the activations of its sound tower are not counted" in str(estimate(job).verdict().not_counted)


def test_radio_is_counted_in_16_bits_and_says_so() -> None:
    job = TrainingJob.from_hf(nemotron("NemotronH_Nano_VL_V2"), num_gpus=8, fp8="hybrid", fp8_recipe="blockwise")
    assert any("counted in 16 bits" in warning for warning in job.warnings)


def test_what_a_tower_keeps_grows_with_images_and_microbatches_in_flight() -> None:
    def activations(**settings: Any) -> int:
        given = {"num_gpus": 8, "seq_length": 4096, "tp": 2, "pp": 2, "global_batch_size": 32, **settings}
        stages = estimate(TrainingJob.from_hf(QWEN, **given)).stages
        assert stages[1].rank.plans[0].runs[0].unit.name != "vision tower"
        return stages[0].breakdown_bytes["activations"]

    none, some, more = (activations(image_tokens=tokens) for tokens in (0, 1024, 2048))
    # two microbatches in flight on the first of two stages, and pixels
    assert some - none == pytest.approx(2 * 2_711_248_896, rel=0.02)
    assert more - none == pytest.approx(2 * (some - none), rel=0.02)
    two = activations(image_tokens=1024, micro_batch_size=2) - activations(micro_batch_size=2)
    assert two == pytest.approx(2 * (some - none), rel=0.02)


def test_a_frozen_tower_keeps_nothing_of_images_but_for_a_trained_projection() -> None:
    def kept(**settings: Any) -> int:
        found = estimate(TrainingJob.from_hf(QWEN, num_gpus=8, image_tokens=1024, **settings))
        return found.stages[0].rank.plans[0].runs[0].trace.saved_bytes

    assert kept(freeze_vision_model=True, freeze_vision_projection=True) == 0
    assert 0 < kept(freeze_vision_model=True) < kept() // 20


def test_images_take_seconds_and_none_of_the_model_s_flops() -> None:
    without, some = (
        throughput(estimate(TrainingJob.from_hf(QWEN, num_gpus=8, tp=2, image_tokens=n))) for n in (0, 2048)
    )
    assert some.step > 1.1 * without.step
    assert some.tflops_gpu * some.step == pytest.approx(without.tflops_gpu * without.step)


def test_more_images_than_the_sequence_holds_are_refused() -> None:
    with pytest.raises(LayoutError, match=r"image_tokens=5000 is not between 0 and seq_length=4096"):
        estimate(TrainingJob.from_hf(QWEN, num_gpus=8, seq_length=4096, image_tokens=5000))


def items(c: Context, whole: Tower) -> Iterator[object]:
    """What a tower of transformers computes in a run."""
    assert whole.hf is not None
    return images(seen(c, whole.hf, whole.given(c.training)), whole.hf, how(c.training, whole))


HF_KEPT = json.loads((FACTS / "towers.json").read_text())["hf_kept"]["records"]


@pytest.mark.parametrize("record", HF_KEPT, ids=lambda record: str(record["kind"]))
def test_a_tower_of_transformers_keeps_what_its_class_keeps(record: dict[str, Any]) -> None:
    """Every layer to the byte, and what stands around the layers of the tower itself to 0.2 %."""
    sizes = dict(record["sizes"])
    sound = Sound(*sizes.pop("sound")) if "sound" in sizes else None
    tower = HfTower(record["kind"], **sizes, sound=sound)
    job = TrainingJob.from_hf("Qwen/Qwen3-8B", 8, seq_length=16384)
    tokens = record["patches"] // tower.merge
    training = dataclasses.replace(job.training, **{"audio_tokens" if sound else "image_tokens": tokens})
    kept = {
        one.storage: one.nbytes
        for op in items(context(dataclasses.replace(job, training=training)), Tower("tower", hf=tower))
        if isinstance(op, Op)
        for one in op.saves
    }
    for layer in (0, tower.depth // 2):
        assert sum(size for name, size in kept.items() if name.startswith(f"layers.{layer}.")) == record["layer_bytes"]
    projector = ("multi_modal_projector", "patch_merger", "linear_1", "act", "avg_pool", "mm_soft", "embedding_p")
    alone = tower.kind in ("siglip", "pixtral", "gemma4")
    outside = sum(
        size
        for name, size in kept.items()
        if not name.startswith("layers.") and not (alone and name.startswith(projector))
    )
    assert outside == pytest.approx(record["outside_bytes"], rel=2e-3)


def test_a_gemma_3_image_is_four_gigabytes_of_the_first_stage() -> None:
    """27 layers of 146,341,888 bytes for one image of 256 tokens, of each microbatch in flight; on every tensor-parallel rank."""
    name = "google/gemma-3-12b-pt"

    def kept(**settings: Any) -> int:
        found = estimate(TrainingJob.from_hf(name, num_gpus=8, tp=4, seq_length=4096, **settings))
        assert not found.verdict().not_counted
        return found.stages[0].rank.plans[0].runs[0].trace.saved_bytes

    one, two = kept(image_tokens=256), kept(image_tokens=512)
    assert 27 * 146_341_888 < one < 27 * 146_341_888 * 1.01
    assert two == pytest.approx(2 * one, rel=1e-3)
    assert (
        kept(image_tokens=256, recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1) == one
    )
    assert kept(image_tokens=256, freeze_vision_model=True, freeze_vision_projection=True) == 0
    assert 0 < kept(image_tokens=256, freeze_vision_model=True) < one // 50


def test_gemma_3_keeps_two_biases_of_scores_for_each_microbatch_in_flight_on_every_stage() -> None:
    """[1, 1, s, s] of 16 bits for windowed layers and for the rest, 2 * 2 * 8192^2 bytes together; whatever is recomputed."""
    both = 2 * 2 * 8192**2

    full: dict[str, Any] = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    for settings in ({}, full):
        found = estimate(
            TrainingJob.from_hf(
                "google/gemma-3-12b-pt", num_gpus=16, tp=4, pp=2, seq_length=8192, image_tokens=256, **settings
            )
        )
        for stage in found.stages:
            (plan,) = stage.rank.plans
            assert plan.held_bytes == both
            assert plan.saved_bytes == both + sum(run.trace.saved_bytes * run.copies for run in plan.runs)
            assert {f"batch.attention_bias.{kind}" for kind in ("local", "global")} <= {row.name for row in stage.rows}


def test_gemma_4_pools_and_norms_nothing_for_backward_behind_a_frozen_tower() -> None:
    """Only the embedder's linear keeps its input: 2 bytes of the tower's width for each token."""
    name = "google/gemma-4-26B-A4B"

    def kept(**settings: Any) -> int:
        found = estimate(
            TrainingJob.from_hf(name, num_gpus=8, tp=2, ep=4, seq_length=4096, image_tokens=560, **settings)
        )
        assert not found.verdict().not_counted
        return found.stages[0].rank.plans[0].runs[0].trace.saved_bytes

    assert kept(freeze_vision_model=True) == 560 * 2 * 1152
    assert 2 * 27 * 273_772_800 < kept() < 2 * 27 * 273_772_800 * 1.01


def test_a_frozen_tower_is_advised_where_images_fill_the_gpu() -> None:
    """Three layers of Gemma 3's tower with 56 images of a sequence. Freezing it is said to change numerics."""
    few = copy.deepcopy(config("google/gemma-3-4b-pt"))
    few["vision_config"]["num_hidden_layers"], few["text_config"]["num_hidden_layers"] = 3, 6
    images: dict[str, Any] = {"seq_length": 16384, "image_tokens": 56 * 256, "optimizer": "sgd"}
    job = TrainingJob.from_hf(few, num_gpus=2, tp=1, gpu="L40S", **images)
    found = advise(job)
    frozen = [one for one in found.outcomes if any(change.name == "a frozen vision tower" for change in one.changes)]
    assert frozen and any(change.asks == "numerics" for change in frozen[0].changes)
    assert min(one.peak for one in frozen) < estimate(job).peak_stage.peak_allocated_bytes - 40 * 10**9


def test_pixtral_s_mask_grows_with_the_square_of_all_images() -> None:
    """Mistral 3 keeps [P, P] of 16 bits for all patches of a microbatch."""

    def mask(tokens: int) -> int:
        found = estimate(TrainingJob.from_hf(MINISTRAL, num_gpus=8, tp=2, seq_length=16384, image_tokens=tokens))
        return next(
            row.nbytes for row in found.stages[0].rows if row.name.endswith("attention_mask") and "vision" in row.name
        )

    assert mask(1024) == 2 * 4096**2
    assert mask(2048) == 4 * mask(1024)


def test_images_of_a_tower_that_is_not_modelled_stay_named() -> None:
    """A projector of several layers of the tower is counted, and what it computes is not known."""
    tower = Tower("vision tower", (Block("blocks", 1, (Weight("weight", (8, 8)),)),))
    held = TowerTraining(image_tokens=512)
    assert lacking((tower,), held) == "the activations of its vision tower are not counted"


@pytest.mark.parametrize("name", ["cuda_graphs", "offload", "megatron_fsdp", "fp8", "muon"])
def test_other_features_pass_over_a_tower(name: str) -> None:
    cases: dict[str, dict[str, Any]] = {
        "cuda_graphs": {"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ("attn",)},
        "offload": {"cpu_offloading_num_layers": 4},
        "megatron_fsdp": {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params"},
        "fp8": {"fp8": "hybrid"},
        "muon": {"optimizer": "muon"},
    }
    found = estimate(TrainingJob.from_hf(QWEN, num_gpus=8, image_tokens=1024, **cases[name]))
    assert found.stages[0].rank.plans[0].runs[0].trace.saved_bytes == 4_214_120_448
    rows = found.stages[0].rows
    assert sum(row.nbytes for row in rows) == found.stages[0].peak_allocated_bytes


LORA: dict[str, Any] = {"peft": "lora"}


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        (QWEN, {}),
        (QWEN, LORA),
        (QWEN, {"freeze_language_model": True}),
        (MINISTRAL, {}),
        ("google/gemma-3-4b-pt", {}),
        ("qwen2_5_omni", {"audio_tokens": 250}),
        ("qwen3_omni_moe", {"audio_tokens": 250, **LORA}),
        ("qwen3_omni_moe", {"audio_tokens": 250, "image_tokens": 260, "vit_gradient_checkpointing": True}),
    ],
    ids=lambda one: one if isinstance(one, str) else "-".join(one) or "as it is",
)
def test_plans_of_a_model_with_a_tower_have_the_figures_of_its_estimate(
    model: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    if "/" not in model:
        path.write_text(json.dumps(omni(model)))
    given: dict[str, Any] = {
        "seq_length": 2048,
        "global_batch_size": 32,
        "gpu": "H200",
        "image_tokens": 512,
        **settings,
    }
    base = TrainingJob.from_hf(model if "/" in model else str(path), 8, **given)
    space = Space(
        num_gpus=(8,), tensor_model_parallel_size=(1, 2, 4), pipeline_model_parallel_size=(1, 2, 4), context_parallel_size=(1, 2),
        micro_batch_size=(1, 2), recompute=("none", "core_attn", "mlp", "full", "uniform:2", "block:2"),
    )  # fmt: skip
    for plan in sampled(base, space, 40, seed=3):
        same_figures(plan)


SWIFT = """#!/bin/bash
NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen3-VL-8B-Instruct --tensor_model_parallel_size 2 --max_length 2048 \\
  --micro_batch_size 1 --global_batch_size 16
"""
BRIDGE = """#!/bin/bash
torchrun --nproc_per_node=8 run_recipe.py --recipe llama3_8b_sft_config
"""


def test_towers_of_frameworks_that_make_their_own_are_not_counted() -> None:
    towers = job_from_text(SWIFT, None, {}, load).model.towers
    assert [tower.name for tower in towers] == ["vision tower"]
    assert not counted(towers)
    assert counted(job_from_text(BRIDGE, None, {"run_model": QWEN}, load).model.towers)


@pytest.mark.parametrize(("kind", "tied"), [("qwen3_vl", True), ("mistral3", False)])
def test_tied_embeddings_that_differ_are_read_as_megatron_bridge_reads_them(kind: str, tied: bool) -> None:
    """`qwen_vl/qwen3_vl_bridge.py` reads the outer object, `ministral3/ministral3_bridge.py` the inner one; both say so."""
    name = {"qwen3_vl": "Qwen/Qwen3-0.6B", "mistral3": "mistralai/Mistral-7B-v0.1"}[kind]
    text = {**entries()[name]["config"], "tie_word_embeddings": False}
    found = convert({"model_type": kind, "tie_word_embeddings": True, "text_config": text}, "x", "t")
    assert found.config["share_embeddings_and_output_weights"] is tied
    assert any("tie_word_embeddings differs" in warning for warning in found.warnings)


def test_a_key_that_is_absent_has_the_default_of_its_class() -> None:
    """Gemma2Config has 4 groups (huggingface/transformers `configuration_gemma2.py`)."""
    config = {
        key: value for key, value in entries()["google/gemma-2-2b"]["config"].items() if key != "num_key_value_heads"
    }
    assert convert(config, "x", "t").config["num_query_groups"] == 4


PATCHES, WIDTH, FFN, OUT = 4096, 1152, 4304, 4096
"""Of 1,024 image tokens: patches; the widths of Qwen3-VL-8B's tower and of its language model."""


def of_projection(tp: int = 1) -> list[Op]:
    """What is computed of images where the layers are frozen and the mergers are trained."""
    settings: dict[str, Any] = {"num_gpus": 8, "tp": tp, "image_tokens": PATCHES // 4, "freeze_vision_model": True}
    unit = estimate(TrainingJob.from_hf(QWEN, **settings)).stages[0].rank.plans[0].runs[0].unit
    return list(flattened(unit.items))


def test_a_trained_projection_keeps_four_mergers_alone() -> None:
    """Each: rows before and behind the norm, fc1's output and the activation, in 16 bits; two fp32 statistics of a row of the norm, which
    is a patch in the last merger and four together in those of layers 8, 16 and 24 (`vision_model.py`, use_postshuffle_norm)."""
    merged = 2 * PATCHES * WIDTH * 4
    saved = {t.storage: t.nbytes for op in of_projection() for t in op.saves}
    assert sum(saved.values()) == 4 * merged + 2 * 4 * PATCHES + 3 * 2 * 4 * PATCHES // 4


@pytest.mark.parametrize("tp", [1, 2])
def test_frozen_layers_multiply_with_their_weights(tp: int) -> None:
    """Forward alone: query, key, value and output of h^2, and two of h x ffn, of 27 layers; the mergers read the last and three others."""
    layers = of_projection(tp)[0]
    (work,) = layers.work
    assert isinstance(work, Streamed)
    assert work.flops == 2 * PATCHES * 27 * (4 * WIDTH**2 + 2 * WIDTH * FFN) // tp
    assert [t.name.split(".")[2] for t in layers.writes] == ["26", "8", "16", "24"]


def test_rows_for_the_first_decoder_layers_are_there_from_the_start() -> None:
    """Pixels in fp32, 3 x 2 x 16 x 16 of a patch, and a row of the language model's width per four patches of three layers."""
    job = TrainingJob.from_hf(QWEN, num_gpus=8, image_tokens=PATCHES // 4)
    (tower,) = job.model.towers
    assert tower.vit is not None
    found = [t.nbytes for t in inputs(context(job), tower)]
    assert found == [4 * PATCHES * 3 * 2 * 16 * 16, *[2 * PATCHES // 4 * OUT] * 3]


def test_sharded_dims_of_a_tower_say_which_they_are() -> None:
    job = TrainingJob.from_hf(QWEN, num_gpus=8, tp=2)
    params = [p for p in tower_params(context(job), job.model.towers[0]) if isinstance(p, Param)]
    shapes = {p.name: p.shape for p in params}
    layer = "vision_model.decoder.layers.0.mlp"
    assert shapes[f"{layer}.linear_fc1.weight"][0].name.endswith(" rows")
    assert shapes[f"{layer}.linear_fc2.weight"][1].name.endswith(" columns")


OMNI_VISION = {"in_channels": 3, "spatial_merge_size": 2, "temporal_patch_size": 2, "hidden_act": "gelu"}
OMNI3_VISION = {
    **OMNI_VISION, "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16, "out_hidden_size": 2048,
    "patch_size": 16, "num_position_embeddings": 2304, "deepstack_visual_indexes": [8, 16, 24],
}  # fmt: skip
OMNI25_VISION = {
    **OMNI_VISION, "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 3584,
    "patch_size": 14, "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31],
}  # fmt: skip
OMNI_AUDIO = {
    "d_model": 1280, "encoder_layers": 32, "encoder_attention_heads": 20, "encoder_ffn_dim": 5120, "num_mel_bins": 128, "dropout": 0.0,
    "scale_embedding": False, "max_source_positions": 1500,
}  # fmt: skip
OMNI3_AUDIO = {
    **OMNI_AUDIO, "output_dim": 2048, "n_window": 50, "n_window_infer": 800, "downsample_hidden_size": 480, "conv_chunksize": 500,
}  # fmt: skip


def omni(kind: str) -> Config:
    """A thinker with towers of published sizes around a text model of the catalogue."""
    text, vision, audio = {
        "qwen3_omni_moe": ("Qwen/Qwen3-30B-A3B", OMNI3_VISION, OMNI3_AUDIO),
        "qwen2_5_omni": ("Qwen/Qwen2.5-7B", OMNI25_VISION, {**OMNI_AUDIO, "output_dim": 3584, "n_window": 100}),
    }[kind]
    inner = config(text, model_type=f"{kind}_text")
    return {
        "model_type": kind,
        "thinker_config": {"vision_config": vision, "audio_config": audio, "text_config": inner},
    }


def omni_job(kind: str, tmp_path: Path, **settings: Any) -> TrainingJob:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(omni(kind)))
    return TrainingJob.from_hf(str(path), num_gpus=8, **{"tp": 2, **settings})


@pytest.mark.parametrize(
    ("kind", "vision", "audio"),
    [("qwen3_omni_moe", 538_631_408, 647_927_168), ("qwen2_5_omni", 676_550_144, 639_647_232)],
)
def test_omni_models_have_two_towers(kind: str, vision: int, audio: int, tmp_path: Path) -> None:
    """Parameters of the classes of huggingface/transformers 5.12.1; the audio tower of Qwen3-Omni with another width behind it has
    649,894,784."""
    towers = omni_job(kind, tmp_path).model.towers
    assert [(tower.name, tower.num_parameters) for tower in towers] == [
        ("vision tower", vision),
        ("audio tower", audio),
    ]
    if kind == "qwen3_omni_moe":
        assert audio + 1536 * 1281 == 649_894_784


def test_an_audio_tower_keeps_what_audio_tokens_say(tmp_path: Path) -> None:
    def first(**settings: Any) -> Run:
        return estimate(omni_job("qwen3_omni_moe", tmp_path, ep=4, **settings)).stages[0].rank.plans[0].runs[0]

    ten_seconds = 32 * 5_670_080 + 82_382_360
    assert first(audio_tokens=130).trace.saved_bytes == pytest.approx(ten_seconds, rel=1e-3)
    assert first(audio_tokens=131).trace.saved_bytes > ten_seconds + 8_000_000, "a stretch more is padded"
    assert first(audio_tokens=130, freeze_audio_model=True).trace.saved_bytes == 0
    seen = first(image_tokens=384)
    assert first(image_tokens=384, freeze_vision_model=True).trace.saved_bytes == 0, "one switch freezes its merger too"
    assert first(image_tokens=384, audio_tokens=130).trace.saved_bytes == (
        seen.trace.saved_bytes + first(audio_tokens=130).trace.saved_bytes
    )
    with_adapters = first(image_tokens=384, audio_tokens=130, peft="lora")
    adapted = {
        param.name.partition(".adapter.")[0].rpartition(".")[2] for param in with_adapters.params if not param.frozen
    }
    assert adapted == {"linear_fc1", "linear_fc2"}, "what Megatron-Bridge finds by name in the vision tower alone"
    assert 0 < with_adapters.trace.saved_bytes < seen.trace.saved_bytes
    counts = {
        sum(param.numel for param in first(tp=tp, image_tokens=384, peft=peft).params if not param.frozen)
        for tp, peft in ((1, "lora"), (2, "lora"), (4, "canonical_lora"))
    }
    assert counts == {27 * 2 * 32 * (1152 + 4304)}, "torch's linears have an adapter that is whole on every rank"
    audio = omni_job("qwen3_omni_moe", tmp_path, ep=4, seq_length=4096, audio_tokens=3000, image_tokens=2000)
    with pytest.raises(LayoutError, match="audio_tokens=3000 beside image_tokens=2000"):
        estimate(audio)
    said = estimate(omni_job("qwen3_omni_moe", tmp_path, ep=4)).verdict().not_counted
    assert said.endswith("--images and --audio-tokens count them")
    assert (
        "audio_tokens has no effect: the model has no audio tower"
        in TrainingJob.from_hf(QWEN, num_gpus=8, audio_tokens=9).warnings
    )


def test_qwen3_asr_hears_and_sees_nothing(tmp_path: Path) -> None:
    """Megatron-Bridge's own class: 16 h + 4 f + 4 n + 16 bytes of a row and layer."""
    inner = config("Qwen/Qwen3-0.6B", model_type="qwen3_asr_text")
    path = tmp_path / "config.json"
    audio = {**OMNI3_AUDIO, "output_dim": 1024}
    path.write_text(
        json.dumps({"model_type": "qwen3_asr", "thinker_config": {"audio_config": audio, "text_config": inner}})
    )
    job = TrainingJob.from_hf(
        str(path), num_gpus=8, audio_tokens=130, freeze_language_model=True, freeze_vision_model=True
    )
    assert [said for said in job.warnings if "no effect" in said] == [
        "freeze_vision_model has no effect: the model has no vision tower"
    ]
    trace = estimate(job).stages[0].rank.plans[0].runs[0].trace
    assert trace.saved_bytes == pytest.approx(32 * 130 * (16 * 1280 + 4 * 5120 + 4 * 20 + 16) + 82_382_360, rel=1e-3)


def test_one_switch_freezes_a_tower_of_an_omni_model(tmp_path: Path) -> None:
    warned = omni_job("qwen2_5_omni", tmp_path, freeze_vision_projection=True).warnings
    assert any(said.startswith("freeze_vision_projection has no effect") for said in warned)
    job = omni_job("qwen2_5_omni", tmp_path, tp=4, image_tokens=2000, audio_tokens=1500, gpu="A100-40GB")
    notes = {one.name: one.note for one in memory_changes(job)}
    assert notes["a frozen vision tower"] == notes["a frozen audio tower"] == "it learns nothing more"


def test_canonical_adapters_of_a_tower_keep_linear_fc1_whole() -> None:
    """Qwen3-VL-8B: 17,693,696 parameters of LoRA, and one matrix into 32 for each of queries, keys and values instead of one for all."""
    given: dict[str, Any] = {"num_gpus": 8, "image_tokens": 1024, "peft": "canonical_lora"}
    run = estimate(TrainingJob.from_hf(QWEN, tp=1, **given)).stages[0].rank.plans[0].runs[0]
    assert sum(param.numel for param in run.params if not param.frozen) == 17_693_696 + 27 * 2 * 1152 * 32


def test_a_frozen_projection_hands_a_gradient_on_to_trained_layers() -> None:
    """Inputs of its linears are not kept, those of norms and of the activation are."""
    for model in ("Qwen/Qwen2.5-VL-7B-Instruct", QWEN):
        given: dict[str, Any] = {"num_gpus": 8, "image_tokens": 1024}
        kept = [
            estimate(TrainingJob.from_hf(model, freeze_vision_projection=on, **given))
            .stages[0]
            .rank.plans[0]
            .runs[0]
            .trace
            for on in (False, True)
        ]
        less = kept[0].saved_bytes - kept[1].saved_bytes
        width = 5120 if model != QWEN else 4608
        mergers = 1 if model != QWEN else 4
        assert less == mergers * 2 * 1024 * width * 2


def test_a_frozen_language_model_keeps_the_whole_embedding_that_its_tower_s_rows_are_cut_from() -> None:
    def kept(**settings: Any) -> int:
        job = TrainingJob.from_hf(QWEN, num_gpus=8, tp=4, sequence_parallel=True, seq_length=4096, **settings)
        runs = estimate(job).stages[0].rank.plans[0].runs
        return next(run.trace.saved_bytes for run in runs if run.unit.name == "embedding")

    others = 2 * 4096 * 4096 * 3 // 4
    assert kept(image_tokens=1024, freeze_language_model=True) == kept(image_tokens=1024, peft="lora") == others
    assert kept(peft="lora") == 0 and kept(image_tokens=1024) > others


def test_kimi_k25_s_tower_is_the_code_of_its_checkpoint() -> None:
    """MoonViT with one matrix of queries, keys and values, and flash attention of all images at once: 20 h + 4 f + 4 n + 16 bytes of a
    patch and layer, of which no record is of a run. Keys begin with vt_ in the published file."""
    whole = config("moonshotai/Kimi-K2.5")
    renamed = {
        f"vt_{name}" if name[:2] in ("hi", "in", "nu") else name: value
        for name, value in whole["vision_config"].items()
    }
    loaded = [convert({**whole, "vision_config": one}, "x", "t") for one in (whole["vision_config"], renamed)]
    assert loaded[0].towers == loaded[1].towers
    projector = 2 * 1152 + 4608 * 4609 + 7168 * 4609
    assert loaded[0].towers[0].num_parameters == 416_866_032 + projector
    job = TrainingJob.from_hf("moonshotai/Kimi-K2.5", num_gpus=256, tp=8, pp=16, ep=16, image_tokens=384)
    kept = {
        one.storage: one.nbytes
        for op in items(context(job), job.model.towers[0])
        if isinstance(op, Op)
        for one in op.saves
    }
    each = 20 * 1152 + 4 * 4304 + 4 * 16 + 16
    assert sum(size for name, size in kept.items() if name.startswith("layers.13.")) == 1536 * each


@pytest.mark.parametrize(
    ("model", "images", "tokens"),
    [
        (QWEN, "4x1024x1024", 4 * 1024),
        (QWEN, "1024x768", 32 * 24),
        (QWEN, "2x512x512 + 1000x1000", 2 * 256 + 31 * 31),
        (MINISTRAL, "1000x1000", 36 * 36),
        ("google/gemma-3-4b-pt", "3x4000x100", 3 * 256),
        ("google/gemma-4-26B-A4B", "2x640x480", 2 * 280),
        ("moonshotai/Kimi-K2.5", "1000x500", 36 * 18),
    ],
)
def test_images_by_their_size_become_tokens(model: str, images: str, tokens: int) -> None:
    """Pixels of a token each way: 32 of Qwen3-VL, 28 of patches of 14; the nearest number of them, or the next where the rest is padded."""
    job = TrainingJob.from_hf(model, num_gpus=512, seq_length=8192, images=images)
    assert job.training.image_tokens == tokens
    assert any(f"{tokens:,} image_tokens of a sequence" in str(one) for one in job.assumptions)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"images": "four"}, "images='four' is not understood; give sizes in pixels, such as images=4x1024x1024"),
        ({"images": "4x0x10"}, "is not understood"),
        ({"images": "00x10"}, "is not understood"),
        ({"images": "4x1024"}, "images='4x1024': 4 x 1024 pixels are less than a token's 32 x 32"),
        (
            {"images": "1024x1024", "image_tokens": 5},
            "images=1024x1024 are 1,024 image_tokens, not 5: give one of both",
        ),
    ],
)
def test_images_that_are_not_understood_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        TrainingJob.from_hf(QWEN, num_gpus=8, **given)
    with pytest.raises(ConfigError, match="images needs a vision tower that is counted; this model has none"):
        TrainingJob.from_hf("Qwen/Qwen3-8B", num_gpus=8, images="1024x1024")


def test_a_tower_whose_shape_the_catalogue_lacks_is_named() -> None:
    for model in ("google/gemma-4-E4B", "moonshotai/Kimi-K3"):
        with pytest.raises(ConfigError, match="the shape of the vision tower, which is not known here"):
            TrainingJob.from_hf(model, num_gpus=8, images="1024x1024")
        job = TrainingJob.from_hf(model, num_gpus=8, image_tokens=64)
        assert any(
            "the shape of the model's vision tower is not known here; give its config.json" in w for w in job.warnings
        )
        assert lacking(job.model.towers) == "the language model alone: its vision or audio tower is not counted"


@pytest.mark.parametrize(
    ("whole", "text", "key", "freezes"),
    [
        ("exaone4_5", "LGAI-EXAONE/EXAONE-4.0-32B", "vision_config", "freeze_vision_model"),
        ("step3p7", "stepfun-ai/Step-3.5-Flash", "vision_config", "freeze_vision_model"),
        ("minimax_m3_vl", "MiniMaxAI/MiniMax-M3", "vision_config", "freeze_vision_model"),
        ("qwen2_audio", "Qwen/Qwen2.5-7B", "audio_config", "freeze_audio_model"),
    ],
)
def test_a_tower_that_nobody_examined_is_refused_where_it_is_trained(
    whole: str, text: str, key: str, freezes: str, tmp_path: Path
) -> None:
    own = entries()[text]["config"]
    inner = {**own.get("text_config", own)}
    inner["model_type"] = {"exaone4_5": "exaone4_5_text", "step3p7": "step3p7_text"}.get(whole, inner["model_type"])
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": whole, "text_config": inner, key: {"hidden_size": 1024, "depth": 8}}))
    job = TrainingJob.from_hf(str(path), 64, tp=4)
    with pytest.raises(
        UnsupportedError,
        match=rf"tower of {whole}, which this run trains, was not examined.*{freezes}.* estimates? the language model alone",
    ):
        estimate(job)
    with pytest.raises(UnsupportedError, match="was not examined"):
        planned(job)
    frozen = {freezes: True, freezes.replace("vision_model", "vision_projection"): True}
    assert estimate(with_settings(job, frozen)).stages


def test_layers_of_omni_towers_run_again_where_they_are_told_to(tmp_path: Path) -> None:
    """Live tensors of Qwen3OmniMoeVisionEncoder and AudioEncoder (transformers 5.12.1, torch 2.13) with gradient_checkpointing_enable and
    enable_input_require_grads, as Megatron-Bridge calls them: a layer keeps its input, trained or frozen, the vision tower's two rotary
    tables once, a frozen tower its first rows and what its last linears' gradients need."""

    def kept(**settings: Any) -> int:
        job = omni_job("qwen3_omni_moe", tmp_path, ep=4, vit_gradient_checkpointing=True, **settings)
        return estimate(job).stages[0].rank.plans[0].runs[0].trace.saved_bytes

    patches, entry, tables = 4 * 384, 3_538_944, 2 * 221_184
    plain = estimate(omni_job("qwen3_omni_moe", tmp_path, ep=4, image_tokens=384)).stages[0].rank.plans[0].runs[0].trace
    assert kept(image_tokens=384) == plain.saved_bytes - 27 * patches * (43_216 - 2 * 1152) + tables
    assert kept(audio_tokens=130) == pytest.approx(82_382_372 + 32 * 332_800, rel=1e-4)
    assert kept(audio_tokens=130, freeze_audio_model=True) == pytest.approx(999_972 + 32 * 332_800, rel=1e-4)
    statistics = 8 * patches + 3 * 8 * patches // 4  # of the norms of the merger and of three more, in fp32
    # the entries of layers, first rows and merger (its norm's input and what its activation reads), and what each of the three more has
    frozen = 27 * entry + 3 * entry + tables + 3 * entry + statistics
    assert kept(image_tokens=384, freeze_vision_model=True) == frozen
    with pytest.raises(LayoutError, match="vit_gradient_checkpointing is a switch of Qwen3-Omni's towers alone"):
        estimate(TrainingJob.from_hf("google/gemma-3-4b-pt", num_gpus=8, vit_gradient_checkpointing=True))
