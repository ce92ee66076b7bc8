"""plan(job, axes): the search from words, on given GPUs or on the fewest that hold the model.

Axes that settings of a request fix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..errors import ConfigError, EstimatorError, LayoutError, StoppedError
from ..inputs.searched import RECOMPUTE, SWITCHES
from ..job.assumption import Assumption
from ..job.hardware import GIB
from ..job.layout import Layout
from ..job.training_job import TrainingJob
from ..modules.counts import count_parameters
from ..throughput.machine import Efficiency
from ..wording import all_of, any_count, counted
from .base import base_job, fewest, state_bytes
from .found import Found, Plan
from .space.axes import Space, axis_name
from .space.defaults import TOKENS, left_out_of_context
from .space.features import BASIC, FEATURES, named, of_state, variants, with_features
from .space.modelled import not_searched
from .space.words import space_of
from .whole_run import asked as whole_asked

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from .search import Shared


class Planned(NamedTuple):
    """The result of a search, and what was decided for it."""

    found: Found
    """The plans, and counts of all other layouts."""
    assumptions: tuple[str, ...]
    """What was decided because it was not given."""

    def __repr__(self) -> str:
        return f"<Planned {repr(self.found)[1:-1].removeprefix('Found ')}>"

    def table(self) -> list[dict[str, Any]]:
        """One record per plan with plain numbers, units in the names of the columns."""
        return self.found.table()

    def to_frame(self) -> DataFrame:
        """`table()` as a frame of pandas."""
        return self.found.to_frame()

    def plot(self, path: str | None = None) -> Figure:
        """Memory against speed as a figure of matplotlib, also written to `path` (.png, .svg, .pdf). Needs the extra `plot`."""
        return self.found.plot(path)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return self.found.html(self.assumptions)


def plan(
    job: TrainingJob,
    axes: Mapping[str, str] | None = None,
    *,
    global_batch_size: int | None = None,
    objective: str = "throughput",
    top: int = 10,
    limit: int | None = None,
    tight: bool = False,
    complete: bool = False,
    fewest_gpus: bool = False,
    every: bool = False,
    efficiency: Efficiency | None = None,
    progress: Callable[[float, Found], None] | None = None,
    stop: Callable[[], bool] | None = None,
    shared: Shared | None = None,
) -> Planned:
    """The best layouts of a job's model and training.

    `axes` says what is searched, by name or short name: "4", "1,2,4", "2-16", "not:8"; the rest is searched whole, but for recomputation
    and switches that the job was given. A model by name is planned with features that published recipes have ("features": "published",
    "safe", "all", "none", or names such as "hybridep+a2a-overlap"). Without num_gpus the job's own number is taken, without a global
    batch the job's own. A plan that another one beats in speed and memory is left out, unless `every` plan is asked for. `limit` is bytes
    of a GPU. With `fewest_gpus` the smallest number of GPUs that trains and resumes the model is sought, and the smallest that trains it.
    `stop` is asked again and again while it searches; once it says True, StoppedError says how far it got. A deadline is
    `lambda: time.monotonic() > deadline`. `shared` is what other plans of the same job have found, on whatever numbers of GPUs.
    Raises LayoutError where nothing is legal, ConfigError for words that make no sense, NumPyError for a large space without NumPy.
    """
    from .search import Shared, begun, search

    known = Shared() if shared is None else shared
    whole_asked(job.env)
    words = _words(axes or {}, job)
    limit, state = job.gpu.memory_bytes if limit is None else limit, least_state(job, words)
    worlds = worlds_of(job, {"num_gpus": words.pop("num_gpus")}) if "num_gpus" in words else ()

    search_ = partial(
        search, best=top, objective=objective, limit=limit, efficiency=efficiency, tight=tight, progress=progress, stop=stop, every=every,
        shared=known, given={"num_gpus", *map(axis_name, words)},
    )  # fmt: skip

    def on(gpus: tuple[int, ...], asked: TrainingJob, *, nearest: bool, whichever: bool = False) -> Planned:
        base, said = base_job(asked, gpus, global_batch_size)
        space = space_of(base, {**words, "num_gpus": ",".join(map(str, gpus))}, everything=complete)
        if state > max(gpus) * limit:  # nothing is searched that cannot be
            found = begun(base, space, objective, limit, efficiency, everything=False)
            found.state = state
        else:
            found = search_(base, space, nearest=nearest, whichever=whichever)
        found.asked = asked
        return Planned(found, (*found.thinned, *_notes(found, base, words, space), *said))

    if not fewest_gpus:
        return _held(on, worlds or (job.layout.world_size,), job)
    return _fewest(on, sorted(fewest(worlds, job.gpu.gpus_per_node)), job, limit, state)


def _notes(found: Found, base: TrainingJob, words: Mapping[str, str], space: Space) -> Iterator[str]:
    """What is said of features, of context parallelism, and of the sets of recomputation that are asked for and not searched."""
    if found.state is None:
        yield from features_said(found)
        yield from idle_features(base, found.space)
        yield from context_said(base, found.space, words)
    if "recompute" in words and (left_out := not_searched(base, space)):
        yield left_out


def _words(axes: Mapping[str, str], job: TrainingJob) -> dict[str, str]:
    """The axes with those that the job's settings fix, and for a model by name the features of published recipes."""
    words = {**({"features": "published"} if job.by_name else {}), **axes}
    fixed(words, dict(job.given), job)
    return words


def worlds_of(job: TrainingJob, words: Mapping[str, str]) -> tuple[int, ...]:
    """Numbers of GPUs that words ask for, or the job's own."""
    return space_of(job, {"num_gpus": words["num_gpus"]}).num_gpus if "num_gpus" in words else (job.layout.world_size,)


CHECKPOINTS = ("load", "save")
"""Phases that a run is never in that is not resumed."""


class On(Protocol):
    """The search on some numbers of GPUs; `nearest`: with the layout that needs least, where none fits; `whichever`: any plan will do."""

    def __call__(
        self, gpus: tuple[int, ...], asked: TrainingJob, *, nearest: bool, whichever: bool = False
    ) -> Planned: ...


def _in_phases(job: TrainingJob, phases: tuple[str, ...]) -> TrainingJob:
    """The job as it is judged in these phases."""
    return replace(job, env=replace(job.env, phases=phases))


def training_only(job: TrainingJob) -> TrainingJob:
    """The job without loading and saving checkpoints."""
    return _in_phases(job, tuple(one for one in job.env.phases if one not in CHECKPOINTS))


def _held(on: On, worlds: tuple[int, ...], job: TrainingJob) -> Planned:
    """The plans that hold every phase of the run; where there is none, those that train."""
    alone = training_only(job)
    same = alone.env.phases == job.env.phases
    found = on(worlds, job, nearest=same)
    if found.found.plans or found.found.interrupted or same or found.found.state is not None:
        return found
    trains = on(worlds, alone, nearest=False)
    if not trains.found.plans:
        return on(worlds, job, nearest=True)
    every, result = job.env.phases, trains.found

    def judged(plans: list[Plan]) -> list[Plan]:
        return [replace(one, job=_in_phases(one.job, every)) for one in plans]

    result.trains_only, result.asked = True, result.asked and _in_phases(result.asked, every)
    result.plans, result.apart = judged(result.plans), judged(result.apart)
    return trains


def least_state(job: TrainingJob, words: Mapping[str, str]) -> int:
    """Bytes of weights, gradients and optimizer of the whole model at least: all ranks together have each of them once.

    A byte for each parameter where one GPU cannot be estimated, or where the search may change what the state is.
    """
    weights = count_parameters(job.model).total
    if words.keys() & {
        "precision",
        "use_distributed_optimizer",
        "use_precision_aware_optimizer",
        "optimizer_offload_fraction",
    }:
        return weights
    alone = replace(job, layout=Layout(), num_microbatches=1)
    try:
        space = space_of(alone, {"num_gpus": "1", "features": words.get("features", "none")})
        sets = {of_state(one.features) for one in variants(alone, space.precision, space.features)}
        return max(weights, min(sum(state_bytes(with_features(alone, one).job).values()) for one in sets))
    except EstimatorError:
        return weights


def _fewest(on: On, tried: list[int], job: TrainingJob, limit: int, state: int) -> Planned:
    """The search on the fewest GPUs with a plan, as if they had been given, and the fewest that train.

    All are tried from the fewest on: more GPUs may divide worse, and need more communicators. Those that cannot hold the `state` together
    are passed over, and so are those for resuming that do not even train.
    """
    possible = [gpus for gpus in tried if gpus * limit >= state]
    alone = training_only(job)
    resumes = alone.env.phases != job.env.phases
    trains = _first(on, possible, alone, whichever=resumes)
    if trains is None:
        raise LayoutError((_nothing(tried, limit),))
    (at,) = trains.found.space.num_gpus
    gpus = counted(at, "GPU")
    if trains.found.interrupted:
        return trains._replace(assumptions=(*trains.assumptions, f"interrupted at {gpus}; fewer do not train it"))
    found = trains
    if resumes:
        try:
            later = _first(on, possible[possible.index(at) :], job)
        except StoppedError as error:
            trains.found.fewest_to_train, trains.found.interrupted = at, True
            return trains._replace(
                assumptions=(*trains.assumptions, f"{gpus} train it; whether they resume it is not known: {error}")
            )
        if later is None:
            raise LayoutError((f"{gpus} train it (--phases training), and {_nothing(tried, limit)}",))
        found = later
    found.found.fewest_to_train = at
    (fewest_gpus,) = found.found.space.num_gpus
    if found.found.interrupted:
        said = f"{gpus} train it; interrupted at {fewest_gpus}, fewer do not resume it"
        return found._replace(assumptions=(*found.assumptions, said))
    found.found.fewest_gpus = fewest_gpus
    return found


def _first(on: On, tried: list[int], job: TrainingJob, *, whichever: bool = False) -> Planned | None:
    """The first number of GPUs with a plan, or the one at which the search was interrupted. Raises LayoutError where nothing is legal."""
    refused: LayoutError | None = None
    searched = False
    for gpus in tried:
        try:
            one = on((gpus,), job, nearest=False, whichever=whichever)
        except LayoutError as error:
            refused = error
            continue
        except StoppedError as error:
            fewer = f"fewer than {counted(gpus, 'GPU')} do not hold it; " if searched else ""
            raise StoppedError(f"{fewer}{error}") from None
        searched = True
        if one.found.plans or one.found.interrupted:
            return one
    if refused is not None and not searched:
        raise refused
    return None


def _nothing(tried: list[int], limit: int) -> str:
    return (
        f"nothing fits on {any_count(tried, 'GPU')} of {limit / GIB:.2f} GiB; try more GPUs, or widen the search with --complete or "
        "--optimizer-offload-fraction 1"
    )


def fixed(given: dict[str, str], values: dict[str, Any], job: TrainingJob) -> None:
    """Axes that other options fix: switches, and recomputation by Megatron's own names."""
    for name in SWITCHES:
        if values.get(name) is not None:
            given[name] = "on" if values[name] else "off"
    if values.get("recompute_granularity") is None and any(
        values.get(name) not in (None, ()) for name in RECOMPUTE[1:]
    ):
        raise ConfigError(
            "--recompute-method, --recompute-num-layers and --recompute-modules need --recompute-granularity; give it, or "
            "--recompute of plan"
        )
    if any(values.get(name) not in (None, ()) for name in RECOMPUTE):
        if "recompute" in given:
            raise ConfigError("--recompute and --recompute-granularity say the same thing; give one of them")
        from .space.recompute import own_recompute

        given["recompute"] = own_recompute(job.training)
    if values.get("optimizer_cpu_offload") and "optimizer_offload_fraction" not in given:
        given["optimizer_offload_fraction"] = "1"


def idle_features(base: TrainingJob, space: Space) -> Iterator[str]:
    """The features that were asked for by name and that nothing of this run turns on."""
    for word in space.features:
        names = named(word) if word != BASIC else ()
        on = {name for one in variants(base, space.precision, (word,)) for name in one.features} if names else set()
        for name in names:
            if name not in on:
                yield f"{name} turns nothing on in this run: {FEATURES[name].says}"


def context_said(base: TrainingJob, space: Space, words: Mapping[str, str]) -> Iterator[str]:
    """The sizes of context parallelism that are not tried because they were not asked for."""
    if any(axis_name(word) == "context_parallel_size" for word in words):
        return
    if more := left_out_of_context(base, space):
        most = max(space.context_parallel_size)
        yield Assumption(
            f"context_parallel_size up to {most}: a rank keeps {TOKENS:,} tokens of a sequence, as in most published recipes "
            f"(--cp {','.join(map(str, (*space.context_parallel_size, *more)))} searches more)",
            f"cp up to {most}" if most > 1 else "cp 1",
        )


def features_said(found: Found) -> Iterator[str]:
    """Where the features of the plans are from, and what of them changes numbers."""
    if found.space.features not in (("published",), (BASIC,)):
        return
    on = [name for name in FEATURES if any(name in one.features for one in found.plans)]
    if not on:
        return
    numbers = [FEATURES[name].says for name in on if FEATURES[name].numerics]
    changed = f"; {all_of(numbers)} change numbers" if numbers else ""
    yield Assumption(
        f"{', '.join(FEATURES[name].says for name in on)}: as in published recipes for this generation of GPUs and this kind of model"
        f"{changed} (--features safe: none that does; --features none: none at all)",
        "features of published recipes, some change numbers"
        if numbers
        else ", ".join(FEATURES[name].says for name in on),
    )
