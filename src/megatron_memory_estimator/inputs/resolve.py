"""From a model and the settings that a user gave to a complete TrainingJob; everything decided here is said.

Two sets of defaults: with a model name, the habits of published recipes; with Megatron's own settings, the class defaults
of TransformerConfig, DistributedDataParallelConfig and OptimizerConfig.

What is left to decide after every given setting: recomputation, GPUs, the split of layers, microbatches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import ConfigError
from ..job.assumption import Assumption
from ..job.choices import DOORS, ROUTING_SHORT
from ..job.hardware import DEFAULT_GPU, LIBRARIES, Environment, Gpu, OpenVersion, any_version, find_gpu
from ..job.layout import SHORT, Layout, fewest_gpus
from ..job.model import Model
from ..job.pipeline import split_layers, virtual_stages
from ..job.rollout import Rollout
from ..job.settings import LARGEST_INTEGER, build, checked
from ..job.tower import EXAMPLE, tokens_of_images
from ..job.training import Training
from ..job.training_job import TrainingJob
from ..legality import balanced_split, even_layout
from ..legality.precision import has_recipe
from ..modules.context import Context
from ..modules.kinds import costly_core_attention
from ..rank.schedule import saturating_microbatches
from ..wording import plain, shown
from .containers import contained
from .door_defaults import MEGATRON_CORE, MEGATRON_LM, decided, open_settings, over_a_model, under_a_model
from .effects import not_backed_up, not_established, not_run, not_timed, without_effect
from .environment import environment_settings
from .everyday import in_megatrons_words
from .loaded_model import LONGEST_NAME, LoadedModel
from .packing import packed
from .setting_names import canonical, full_name, sorted_settings
from .spellings import respelled
from .transformer_config import uncounted

# -- habits of published recipes ---------------------------------------------------------------------------------------

DEFAULT_SEQ_LENGTH = 4096

HABITS: dict[str, Any] = {
    "expert_tensor_parallel_size": 1,
    "use_distributed_optimizer": True,
    "gradient_accumulation_fusion": True,
    "moe_token_dispatcher_type": "alltoall",
    "moe_grouped_gemm": True,
    "moe_permute_fusion": True,
    "moe_aux_loss_coeff": 1e-3,
}
"""With a model name: settings that published recipes share and Megatron-LM leaves off by default."""


def habits_for(given: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """The habits that go with what was given and with the model: what excludes one is not contradicted by it."""
    habits = dict(HABITS)
    if config.get("ngram_table_rows"):
        del habits["expert_tensor_parallel_size"]  # Megatron-LM needs it to be the other one (docs/models/engram.md)
    if given.get("optimizer") == "sgd":
        habits["use_distributed_optimizer"] = False
    if given.get("transformer_impl") == "local":
        habits["moe_grouped_gemm"] = habits["moe_permute_fusion"] = False
    return habits


_NULLABLE = {"q_lora_rank", "moe_shared_expert_intermediate_size", "mtp_num_layers", "num_moe_experts"}
"""Settings for which None is a choice, and not the same as leaving them out."""


def job_from_config(config: Mapping[str, Any], num_gpus: int | None, settings: Mapping[str, Any]) -> TrainingJob:
    """See `TrainingJob.from_config`."""
    if not isinstance(config, Mapping):
        raise ConfigError("config must be a mapping of TransformerConfig names to values")
    merged = {**config, **settings}
    twice = [name for name in config if name in settings and settings[name] != config[name]]
    off = offloading_is_off(merged) if "cpu_offloading_num_layers" not in settings else ()
    mla = bool(merged.get("multi_latent_attention"))
    defaults = {**decided(MEGATRON_CORE), **({"normalization": "RMSNorm"} if mla else {})}
    loaded = LoadedModel({}, str(merged.pop("name", "") or ""), "settings", "")
    job = job_from_parts(loaded, num_gpus, merged, habits=False, defaults=defaults)
    job = dataclasses.replace(job, warnings=(*job.warnings, *off))
    notes = tuple(f"the setting {name}={settings[name]!r} overrides {config[name]!r} of the config" for name in twice)
    return dataclasses.replace(job, assumptions=(*notes, *job.assumptions))


def offloading_is_off(values: dict[str, Any]) -> tuple[str, ...]:
    """Sets layers to offload to 0 where the switch is off, as TransformerConfig has it (`cpu_offloading`), and says so.

    Megatron-LM's argument --cpu-offloading-num-layers is its own switch.
    """
    layers = values.get("cpu_offloading_num_layers")
    if not layers or values.get("cpu_offloading"):
        return ()
    values["cpu_offloading_num_layers"] = 0
    return (f"cpu_offloading_num_layers={layers!r} has no effect: cpu_offloading is off",)


def _not_none(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def model_of(loaded: LoadedModel) -> Model:
    """The architecture of a loaded model, without a layout."""
    model: Model = build(Model, {**sorted_settings(loaded.config)[Model], **_beside(loaded)})
    return model


def _beside(loaded: LoadedModel) -> dict[str, Any]:
    """What a model has beside its settings."""
    return {"foreign_layers": loaded.foreign, "towers": loaded.towers}


def job_from_parts(
    loaded: LoadedModel,
    num_gpus: int | None,
    settings: Mapping[str, Any],
    *,
    habits: bool,
    defaults: Mapping[str, Any] | None = None,
    strict: bool = False,
    single_microbatch: bool = False,
    framework: Mapping[str, Any] | None = None,
) -> TrainingJob:
    """A complete job: defaults, then what the model's config says, then what the user gave, then what is left to decide.

    `framework` are defaults of the framework that trains, which hold over the model's config; the limit of models with RoPE then follows
    the length that they train on, as it does with `habits`.
    """
    given = _given(settings)
    asked_gpu = given.pop("gpu", None)
    variables = given.pop("env", None)
    strict = _flag("strict", given.pop("strict", strict))
    if "num_microbatches" in given:
        raise ConfigError("num_microbatches follows from global_batch_size; give that")
    door = given.get("door") or MEGATRON_LM
    through = over_a_model(door, loaded.family, loaded.config)
    values = {
        **(habits_for(given, loaded.config) if habits else {}),
        **canonical(defaults or {}),
        **under_a_model(door),
        **canonical(loaded.config),
        **respelled(canonical(framework or {})),
        **through,
        **given,
    }
    if not habits and given.get("door"):
        raise ConfigError(
            "door is for a model by its name: a run file, arguments and a configuration say what they leave to a default; leave it out"
        )
    parts = sorted_settings(values)
    env = _environment(parts[Environment], variables)
    assumptions: list[str] = []
    assumptions += _longer_positions(parts, given) if habits or framework is not None else []
    open_versions, notes = _versions(parts[Training], env)
    assumptions += notes
    model: Model = build(Model, {**parts[Model], **_beside(loaded)})
    assumptions[:0] = [_habits_assumed(model, door)] if habits else []
    training, notes = _training(parts[Training], model)
    assumptions += notes
    rows = packed(model, training, parts[Layout], num_gpus or parts[Layout].get("world_size"))
    model, training = rows.model, rows.training
    assumptions += rows.said
    gpu, notes = _gpu(asked_gpu, training)
    assumptions += notes
    batch_is_assumed = training.global_batch_size is None and not single_microbatch
    layout_values = {name: checked(Layout.__dataclass_fields__[name], value) for name, value in parts[Layout].items()}
    layout_values.update(rows.degrees)
    layout, notes, microbatches, training = decide_layout(
        model, layout_values, training, num_gpus, given, habits=habits, strict=strict, single_microbatch=single_microbatch
    )  # fmt: skip
    assumptions += notes
    assumptions += _routing_assumed(model, layout, training)
    if model.mtp and habits and "mtp_num_layers" not in given:
        assumptions.append(_mtp_assumed(model.mtp))
    job = TrainingJob(
        model=model,
        layout=layout,
        training=training,
        gpu=env.installed(gpu),
        env=env,
        rollout=build(Rollout, parts[Rollout]),
        name=plain(loaded.name, LONGEST_NAME),
        source=plain(loaded.source, LONGEST_NAME),
        model_type=plain(loaded.model_type, LONGEST_NAME),
        num_microbatches=microbatches,
        batch_is_assumed=batch_is_assumed,
        open_versions=open_versions,
        open_settings=tuple(open_settings(door, loaded.family, canonical(loaded.config), given)) if habits else (),
        refusal=loaded.refusal,
        by_name=habits,
        given={**given, **_not_none(env=variables, gpu=asked_gpu, world_size=num_gpus)} if habits else {},
        assumptions=tuple(note if isinstance(note, Assumption) else plain(note) for note in assumptions),
    )
    warned = (*_warnings(job, loaded, given, habits=habits), *uncounted(values))
    return dataclasses.replace(job, warnings=tuple(map(plain, warned)))


def _versions(settings: dict[str, Any], env: Environment) -> tuple[tuple[OpenVersion, ...], list[str]]:
    """Fills in the library versions that the container's name says; those that are open, and what is said of the container."""
    missing = [name for name in LIBRARIES if name not in settings]
    if env.container is None:
        return tuple(map(any_version, missing)), []
    found = contained(env.container)
    settings.update({name: found.versions[name] for name in missing if name in found.versions})
    held = {one.setting: one for one in found.open}
    known = [name for name in found.versions if name not in held]
    return tuple(held.get(name, any_version(name)) for name in missing if name not in known), [found.said]


def _gpu(name: Any, training: Training) -> tuple[Gpu, list[str]]:
    """The GPU that is judged; where none is given, one that has the numbers of the run."""
    if name is not None:
        return find_gpu(_name("gpu", name)), []
    usual = find_gpu(DEFAULT_GPU)
    if has_recipe(training, usual):
        return usual, []
    return find_gpu(DEFAULT_BLACKWELL), [
        f"gpu not given: {DEFAULT_BLACKWELL}, as {training.low_precision} needs Blackwell"
    ]


DEFAULT_BLACKWELL = "B200-180GB"

SAID, SAID_OF_EXPERTS = (
    "distributed optimizer, gradient accumulation fusion",
    "grouped experts, alltoall dispatcher, fused permutation, a balancing loss",
)


def _habits_assumed(model: Model, door: str) -> Assumption:
    """What published recipes share, or the door decides, and is taken where it is not given, for a model of this kind."""
    if door != MEGATRON_LM:
        said = (
            f"door={door}: what {DOORS[door]} decides for this family, where it is not given (docs/reference/doors.md)"
        )
        return Assumption(said, f"as {DOORS[door]} builds it")
    etp = f"expert_tensor_parallel_size {'as tensor_model_parallel_size' if model.ngram_table_rows else 1}"
    listed = [SAID, etp, SAID_OF_EXPERTS] if model.has_moe else [SAID]
    said = f"common recipe defaults where not given: {', '.join(listed)}; --door says what else may build the model"
    return Assumption(said, "common recipe defaults")


def _given(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What the user gave by Megatron's current names, in our spelling of values; None is given where it means something."""
    if not all(isinstance(name, str) for name in settings):
        raise ConfigError("names of settings must be words")
    values = in_megatrons_words(settings)
    return respelled(
        canonical({k: v for k, v in values.items() if v is not None or k.replace("-", "_") in _NULLABLE}, full_name)
    )


def _environment(settings: dict[str, Any], given: Any) -> Environment:
    """The environment of the settings and of variables, or as it is given whole."""
    if isinstance(given, Environment):
        return given
    env: Environment = build(Environment, {**settings, **environment_settings(given)})
    return env


def _training(settings: dict[str, Any], model: Model) -> tuple[Training, list[str]]:
    """The training settings, and what is assumed where they say nothing."""
    notes = []
    if "seq_length" not in settings:
        length = min(DEFAULT_SEQ_LENGTH, model.max_position_embeddings or DEFAULT_SEQ_LENGTH)
        settings = {**settings, "seq_length": length}
        notes.append(Assumption(f"seq_length not given: {length}", f"seq_length {length}"))
    if settings.get("images"):
        settings, said = _seen(settings, model)
        notes.append(said)
    training, recomputes = recompute_defaults(build(Training, settings))
    return training, notes + recomputes


def _seen(settings: dict[str, Any], model: Model) -> tuple[dict[str, Any], Assumption]:
    """The settings with the tokens that images become, and how many those are. Raises ConfigError where both are given and differ."""
    images = settings["images"]
    if not isinstance(images, str):
        raise ConfigError(f"images={shown(images)} is not understood; give sizes in pixels, {EXAMPLE}")
    tokens = tokens_of_images(images, model.towers)
    if str(settings.get("image_tokens") or tokens) != str(tokens):
        raise ConfigError(
            f"images={images} are {tokens:,} image_tokens, not {settings['image_tokens']}: give one of both"
        )
    said = f"images={images}: {tokens:,} image_tokens of a sequence, where the processor scales none of them up or down"
    return {**settings, "image_tokens": tokens}, Assumption(said, f"{tokens:,} image tokens")


def _routing_assumed(model: Model, layout: Layout, training: Training) -> list[str]:
    """The factor of typical routing, where nothing but an assumption says how many rows each expert-parallel rank gets."""
    divides = (model.num_moe_experts or 1) % layout.ep == 0  # else the layout is refused, with a sentence
    found = Context(model, layout, training, kernel="").routing if divides and model.has_moe else None
    if found is None:
        return []
    phase = training.routing_phase.replace("_", " ")
    return [
        Assumption(
            f"typical routing ({phase}): the busiest expert-parallel rank gets {found.typical:.2f} times the rows of balanced "
            "routing; --router-imbalance sets the factor, --routing-phase what is typical",
            ROUTING_SHORT,
        )
    ]


def _mtp_assumed(count: int) -> Assumption:
    layers = f"{count} multi-token prediction layer{'s' if count > 1 else ''}"
    return Assumption(
        f"{layers} as in the config; --mtp-num-layers 0 turns them off", f"{count} MTP layer{'s' if count > 1 else ''}"
    )


def _warnings(job: TrainingJob, loaded: LoadedModel, given: Mapping[str, Any], *, habits: bool) -> Iterator[str]:
    """What the user should know about a job that is decided."""
    yield from loaded.warnings
    if job.gpu.chip_unknown:
        yield (
            f"nothing but the memory of {job.gpu.name} is known: the kernels of an H100 are assumed, and step times are not known"
            f"{'; ' if job.gpu.note else ''}{job.gpu.note}"
        )
    yield from without_effect(job.model, job.training, given)
    yield from not_established(job.model, job.layout, job.training)
    yield from not_backed_up(job.rollout)
    yield from not_run(job.model, job.training)
    yield from not_timed(job.model, job.training)
    if job.rollout.shares_gpus and job.rollout.rollout_memory_share is None:
        yield (
            f"rollout_memory_share is not given: of {job.rollout.rollout_engine} its weights and its process are counted, and it may take "
            "all that is left of the GPU while samples are generated"
        )
    if recomputes_costly_core_attention(job):
        yield COSTLY


COSTLY = "recompute_modules core_attn costs memory with fused attention: the packed QKV output stays, beside query and key after RoPE"


def recomputes_costly_core_attention(job: TrainingJob) -> bool:
    """Whether a run recomputes core attention although that keeps more than it drops."""
    return job.training.recomputes("core_attn") and costly_core_attention(job.model, job.kernel)


def _longer_positions(parts: dict[type[Any], dict[str, Any]], given: Mapping[str, Any]) -> list[str]:
    """Raises the limit of RoPE models with a name to the length they are trained on, as recipes do, and says so."""
    model, length = parts[Model], parts[Training].get("seq_length")
    limit = model.get("max_position_embeddings")
    if "max_position_embeddings" in given or not isinstance(length, int) or not isinstance(limit, int):
        return []
    if not limit < length <= LARGEST_INTEGER or model.get("position_embedding_type") != "rope":
        return []
    model["max_position_embeddings"] = length
    return [f"max_position_embeddings raised from {limit} to seq_length {length}"]


def _name(setting: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{setting}={value!r} must be a name")
    return value


def _flag(setting: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{setting}={value!r} must be true or false")
    return value


def whole_number(name: str, value: Any) -> int:
    """A whole number of at least 1."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()  # a NumPy scalar
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or value > 2**40:
        raise ConfigError(f"{name}={shown(value)} must be a whole number of at least 1")
    return value


def recompute_defaults(training: Training) -> tuple[Training, list[str]]:
    """Full recomputation without a method means uniform with one layer per checkpoint."""
    if training.recompute_granularity != "full":
        return training, []
    changes: dict[str, Any] = {}
    notes: list[str] = []
    if training.recompute_method is None:
        changes["recompute_method"] = "uniform"
        notes.append(Assumption("recompute_method not given: uniform", "recompute_method uniform"))
    if training.recompute_num_layers is None:
        changes["recompute_num_layers"] = 1
        notes.append("recompute_num_layers not given: 1")
    return dataclasses.replace(training, **changes), notes


def decide_layout(
    model: Model,
    values: dict[str, Any],
    training: Training,
    num_gpus: int | None,
    given: Mapping[str, Any],
    *,
    habits: bool,
    strict: bool,
    single_microbatch: bool,
) -> tuple[Layout, list[str], int, Training]:
    """The layout, what was decided for it, the microbatches of a step, and the training with its global batch."""
    notes: list[str] = []
    values = dict(values)
    given_world = values.pop("world_size", None)
    world = given_world if num_gpus is None else num_gpus
    draft = Layout(**values)
    for degree in ("tp", "pp", "cp", "ep", "etp"):
        whole_number(SHORT[degree], getattr(draft, degree))
    if habits and "sequence_parallel" not in given:
        values["sequence_parallel"] = draft.tp > 1 and (draft.etp == 1 or model.has_moe)
        if values["sequence_parallel"]:
            notes.append(Assumption("sequence_parallel on (tensor_model_parallel_size above 1)", "sequence_parallel"))
    if world is None:
        world = fewest_gpus(draft.tp * draft.cp, draft.etp * draft.ep if model.num_moe_experts else 1, draft.pp)
        if habits and strict:
            raise ConfigError(f"num_gpus is not given; the smallest legal count is {world}")
        notes.append(_smallest(world, habits=habits))
    layout, split_notes = _split(
        model, Layout(world_size=whole_number("num_gpus", world), **values), strict=strict, habits=habits
    )
    microbatches, batch_notes, training = _microbatches(model, layout, training, single=single_microbatch)
    return layout, notes + split_notes + batch_notes, microbatches, training


def _smallest(world: int, *, habits: bool) -> Assumption:
    """What is said of a number of GPUs that nothing gives; of a run's file it stands above the figures."""
    if habits:
        return Assumption(f"num_gpus not given: {world}, the smallest legal count", f"num_gpus {world}")
    return Assumption(
        f"num_gpus not given: {world}, the smallest legal count, which is the worst case; --num-gpus sets it",
        f"num_gpus {world}",
        above=True,
    )


def _split(model: Model, layout: Layout, *, strict: bool, habits: bool) -> tuple[Layout, list[str]]:
    """The most balanced legal split where layers do not divide over pipeline stages and none was given."""
    pp = layout.pp
    chosen = layout.num_layers_in_first_pipeline_stage, layout.num_layers_in_last_pipeline_stage
    if not habits or pp == 1 or any(n is not None for n in chosen) or layout.pipeline_model_parallel_layout:
        return layout, []
    if layout.num_layers_per_virtual_pipeline_stage is not None or model.has_borders:
        return layout, []
    vp = layout.virtual_pipeline_model_parallel_size or 1
    total = split_layers(model, layout)
    if model.moe_n_hash_layers and not model.hybrid and vp > 0 and (text := even_layout(total, pp * vp, model.mtp)):
        said = f"moe_n_hash_layers needs a pipeline_model_parallel_layout: {text}, layers as even as can be"
        changed = dataclasses.replace(
            layout, pipeline_model_parallel_layout=text, virtual_pipeline_model_parallel_size=None
        )
        return changed, [Assumption(said, f"layout {text}")]
    if vp < 1 or (total % pp == 0 and total // pp % vp == 0) or total != model.num_layers:
        return layout, []
    split = balanced_split(model.num_layers, pp, vp)
    if split is None:
        return layout, []
    first, last = split
    words = ", ".join(
        f"{name}={n}"
        for name, n in zip(
            ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"), split, strict=True
        )
        if n is not None
    )
    sizes = f"pipeline_model_parallel_size={pp}"
    chunked = (
        sizes if vp == 1 else f"pipeline_model_parallel_size*virtual_pipeline_model_parallel_size={pp}*{vp}={pp * vp}"
    )
    places = f"{pp} stages" if vp == 1 else f"{pp * vp} chunks (pp {pp}, vpp {vp})"
    if strict:
        raise ConfigError(f"num_layers={total} is not divisible by {chunked}; use {words}, or leave --strict out")
    changed = dataclasses.replace(
        layout, num_layers_in_first_pipeline_stage=first, num_layers_in_last_pipeline_stage=last
    )
    short = ", ".join(f"{n} layers {where}" for where, n in (("first", first), ("last", last)) if n is not None)
    said = Assumption(
        f"{total} layers do not divide evenly over {places}: {words}, the most balanced legal split", short
    )
    return changed, [said]


def _microbatches(model: Model, layout: Layout, training: Training, *, single: bool) -> tuple[int, list[str], Training]:
    """Microbatches of a step from the global batch; without one so many that more would change nothing, or one."""
    if layout.world_size % (layout.tp * layout.gtp * layout.pp * layout.cp) or layout.dp < 1:
        return 1, [], training  # legality says why
    per_step = training.micro_batch_size * layout.readers
    if training.global_batch_size is not None:
        if training.global_batch_size % per_step:
            ways = "data_parallel_size" if layout.gtp == 1 else "data_parallel_size*gtp_weight_remat_size"
            raise ConfigError(
                f"global_batch_size={training.global_batch_size} is not divisible by micro_batch_size*{ways}="
                f"{training.micro_batch_size}*{layout.readers}={per_step}; use a multiple of {per_step}"
            )
        return training.global_batch_size // per_step, [], training
    try:
        vp = virtual_stages(model, layout)
    except ConfigError:
        vp = 1
    except ValueError:
        return 1, [], training
    group = layout.microbatch_group_size_per_vp_stage or layout.pp
    count = 1 if single else saturating_microbatches(layout.pp, max(vp, 1), max(group, 1))
    why = "Megatron's default" if single else "more would not change the peak"
    note = f"global_batch_size not given: {count * per_step} ({count} microbatch{'es' if count > 1 else ''}, {why})"
    return count, [note], dataclasses.replace(training, global_batch_size=count * per_step)
