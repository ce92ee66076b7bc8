"""Plans with their estimates: as records, in words, and why there is none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from ..dataclass import dataclass
from ..device.host import GB
from ..device.verdict import Event, Verdict
from ..estimator import Estimate, estimate
from ..inputs.resolve import COSTLY, recomputes_costly_core_attention
from ..job.hardware import GIB
from ..job.training_job import TrainingJob
from ..planner.found import ROOM, Found, Plan
from ..planner.launch import bridge_overrides, bridge_sections, environment, megatron_lm
from ..planner.own import own
from ..planner.paying import Worth, paying, worth
from ..planner.space.features import FEATURES
from ..planner.whole_run import WholeRun, whole_run
from ..throughput.certainty import Likely, likely, untimed
from ..throughput.machine import Efficiency, machine
from ..throughput.step import Throughput, timed
from ..wording import all_of, counted
from .plan_words import in_short, layout_text, optimizer_text, plan_settings
from .quantities import NOTHING, Door, brief, document, gib, labelled, record, table
from .records import Record
from .speed import WORDS, largest_part, limit_text
from .verdict import DOES, verdict_text

SCHEMA = "megatron-memory-plan/1"
LITTLE = 0.01
"""A share of a step that is not worth a name."""


@dataclass(frozen=True)
class Row:
    """A plan with its estimate and its step time by part.

    `limit` is what it may take of a GPU, all of it where that is not said. `asked` is the job that was planned, `first` the best plan
    where it is another.
    """

    plan: Plan
    efficiency: Efficiency | None = None
    limit: int | None = None
    asked: TrainingJob | None = None
    first: Row | None = None

    @cached_property
    def estimate(self) -> Estimate:
        """The explained estimate of the plan."""
        return estimate(self.plan.job)

    @cached_property
    def time(self) -> Throughput:
        """Step time by part."""
        job = self.plan.job
        return timed(job, machine(job.gpu, self.efficiency, job.env.network_gbs), self.plan.parts)

    @property
    def likely(self) -> Likely:
        """What published runs like it reached of their predictions."""
        return likely(self.plan.job)

    @cached_property
    def whole(self) -> WholeRun | None:
        """What a whole run takes, where that is asked."""
        ranks = (stage.rank for stage in self.estimate.stages)
        return whole_run(self.plan.job, ranks, self.plan.step)

    @cached_property
    def verdict(self) -> Verdict:
        """What the plan is within its limit."""
        return self.estimate.verdict(self.limit)

    @property
    def judged(self) -> Event:
        """What it is planned for: the phase that decides, or training, where it trains and does nothing else surely."""
        return self.verdict.events[0] if self.verdict.word == "does not fit" else self.verdict.decides

    @property
    def limited_by(self) -> tuple[str, float]:
        """The largest part of a step beside the kernels of forward and backward, and its share."""
        return largest_part(self.time)

    @property
    def limit_text(self) -> str:
        """The same in words."""
        return limit_text(self.time)


def rows_of(found: Found) -> list[Row]:
    """The plans of a search with their estimates."""
    rows: list[Row] = []
    for plan in found.plans:
        first = rows[0] if rows else None
        rows.append(Row(plan, found.efficiency, found.limit, found.asked, first))
    return rows


def apart_rows(found: Found) -> list[Row]:
    """Tight plans that are better than the first that fits, with their estimates."""
    return [Row(plan, found.efficiency, found.limit, found.asked) for plan in found.apart]


def beside_first(row: Row) -> str:
    """How many tokens fewer each GPU passes than with the first plan, and the part of the step that takes most of the time between."""
    first = row.first
    if first is None:
        name, share = row.limited_by
        if share < LITTLE:
            return "nearly all of its step is computation"
        return f"{share:.0%} of the step goes to {name}"
    spent = {name: _gpu_seconds(row, name) - _gpu_seconds(first, name) for name in row.time.parts}
    whole = sum(_gpu_seconds(first, name) for name in first.time.parts)
    longer = sum(spent.values()) / whole
    change = 1 / (1 + longer) - 1
    name = max(spent, key=lambda part: spent[part] * (1 if longer >= 0 else -1))
    speed = (
        "as fast as 1" if abs(change) < 0.0005 else f"{abs(change):.1%} {'slower' if longer >= 0 else 'faster'} than 1"
    )
    more = "more" if spent[name] >= 0 else "less"
    return f"{speed}: {abs(spent[name]) / whole:.1%} of a step {more} for {WORDS.get(name, name)}"


def crossing(row: Row) -> str:
    """Which groups of ranks are larger than an NVLink domain, so that their traffic takes the network."""
    layout, domain = row.plan.job.layout, row.plan.job.gpu.nvlink_domain
    spans = (("tp", layout.tp, 1), ("cp", layout.cp, layout.tp), ("ep", layout.ep, layout.etp))
    found = [
        f"{name} over {-(-ranks * stride // domain)}"
        for name, ranks, stride in spans
        if ranks > 1 and ranks * stride > domain
    ]
    return f"{', '.join(found)} NVLink domains of {domain} GPUs" if found else ""


def _gpu_seconds(row: Row, part: str) -> float:
    return row.time.parts.get(part, 0.0) * row.plan.job.layout.world_size


def plan_records(plans: Found | Sequence[Row]) -> list[Record]:
    """One record per plan."""
    rows = rows_of(plans) if isinstance(plans, Found) else plans
    return [{"plan": number, **_record(row)} for number, row in enumerate(rows, 1)]


def _record(row: Row) -> Record:
    layout = row.plan.job.layout
    ways = "/".join(layout.cp_comm_type) if layout.cp > 1 else "none"
    return {
        **record(LAYOUT, row),
        "cp_comm_type": ways,
        **record(PLAN, row),
        **_given(record(WHOLE, row.whole) if row.whole else {}),
    }


def _given(figures: Mapping[str, Any]) -> dict[str, Any]:
    """The figures that are known."""
    return {name: value for name, value in figures.items() if value not in (None, NOTHING)}


def plan_figures(row: Row, door: Door) -> dict[str, str]:
    """The figures of a plan by the heads of their columns, with those of a whole run that are asked for."""
    whole = labelled(WHOLE, row.whole, door) if row.whole else {}
    return {**labelled(PLAN, row, door), **_given(whole)}


def plan_brief(row: Row) -> dict[str, Any]:
    """The same for agents."""
    return {**brief(PLAN, row), **_given(brief(WHOLE, row.whole) if row.whole else {})}


def _launch(row: Row) -> dict[str, Any]:
    """How a plan is started."""
    job = row.plan.job
    launch = megatron_lm(job)
    return {
        "megatron_lm": launch.words(),
        "settings_without_argument": launch.beside,
        "bridge_overrides": bridge_overrides(job),
        "bridge": bridge_sections(job),
        "environment": environment(job),
    }


def _offloaded(row: Row) -> float:
    t = row.plan.job.training
    return t.optimizer_offload_fraction if t.optimizer_cpu_offload else 0.0


def warnings(rows: Sequence[Row]) -> list[str]:
    """What is not as it seems in these plans."""
    found = dict.fromkeys(note for row in rows for note in row.plan.job.warnings)
    if any(recomputes_costly_core_attention(row.plan.job) for row in rows):
        found[COSTLY] = None
    if any(not row.time.measured_rates for row in rows):
        found["the rates of this GPU are shares of its peaks: nothing measured is known; step times are rough"] = None
    found |= dict.fromkeys(filter(None, (untimed(row.plan.job) for row in rows)))
    if any(row.plan.job.training.optimizer_cpu_offload for row in rows):
        found[
            "an offloaded optimizer is stepped by one CPU core for each GPU, as torchrun starts them: OMP_NUM_THREADS gives more"
        ] = None
    return list(found)


FIRST = {"throughput": "The fastest", "memory": "The least peak", "head-room": "The most head-room"}


def answer(found: Found, rows: Sequence[Row]) -> Iterator[str]:
    """The answer: how many GPUs where that was asked, the best plan and its verdict; or why there is none."""
    if found.interrupted:
        yield "interrupted: the best so far"
    if not rows:
        yield nothing_fits(found)
        return
    first = rows[0]
    head = fewest_text(found) if found.fewest_gpus is not None else FIRST[found.objective]
    rate = first.plan.tokens_per_s_gpu
    around = f"{rate * first.likely.low:,.0f} to {rate * first.likely.high:,.0f} by published runs"
    yield f"{head}: {in_short(first.plan)}, {rate:,.0f} tokens/s/GPU ({around}). {verdict_text(first.verdict, first.estimate)}"
    yield from _closest(first)
    if first.whole is not None:
        yield whole_text(first.plan.job, first.whole)


CLOSE = 0.02
"""The share of a GPU below which what a plan leaves free is said to be little: a judgement, no byte stands for it."""


def _closest(row: Row) -> Iterator[str]:
    """Another phase that leaves less than training, where the plan fits in all: its row has that figure. And where little is left."""
    training, least = row.verdict.events[0], row.judged
    left = least.head_room.low
    if row.verdict.fits and left < training.head_room.low - ROOM:
        yield f"{DOES[least.phase].what.capitalize()} leaves less: at least {left / GIB:.1f} GiB."
    if row.verdict.fits and left < CLOSE * row.verdict.memory_bytes and not row.plan.job.env.head_room:
        yield f"{left / GIB:.1f} GiB is little: --head-room 5% keeps more free."


def likely_text(row: Row) -> str:
    """What the range of a plan's rate is from."""
    return (
        f"Published runs of {row.likely.of} reached {row.likely.low:.2f} to {row.likely.high:.2f} of their predictions."
    )


def whole_text(job: TrainingJob, run: WholeRun) -> str:
    """What a whole run takes, in words."""
    said = []
    if run.days is not None:
        cost = f" and {run.dollars:,.0f} dollars" if run.dollars is not None else ""
        said.append(f"{job.env.train_tokens:,.0f} tokens take {run.days:,.1f} days{cost}")
    if run.tokens_per_dollar is not None:
        said.append(f"a dollar pays for {run.tokens_per_dollar:,.0f} tokens")
    if run.goodput is not None:
        assert run.save_interval and run.save_s and run.checkpoint_bytes and run.failures_per_day
        every = f"every {run.save_interval:,} steps" + (" (costs least)" if job.env.save_interval is None else "")
        said.append(
            f"{run.goodput:.1%} of the time is steps that are kept, with {run.failures_per_day:,.2f} failures a day and "
            f"{run.save_s:,.1f} s for a checkpoint of {run.checkpoint_bytes / GB:,.0f} GB {every}"
        )
    text = "; ".join(said)
    return f"{text[0].upper()}{text[1:]}."


def nothing_fits(found: Found) -> str:
    """Why there is no plan: what all GPUs together lack, or the layout that comes nearest."""
    if found.state is not None:
        gpus, hold = found.all_gpus, -(-found.state // found.limit)
        together = "1 GPU has" if gpus == 1 else f"{gpus:,} GPUs together have"
        return (
            f"no layout fits in {gib(found.limit)} GiB: weights, gradients and optimizer are {gib(found.state)} GiB at least, and "
            f"{together} {gib(gpus * found.limit)} GiB. {hold:,} GPUs could just hold them (--min-num-gpus finds how many train it); "
            "--optimizer-offload-fraction 0.5,1 needs fewer"
        )
    if found.least is None:
        return "nothing was evaluated yet"
    needs = Row(found.least, limit=found.limit).verdict.decides
    needed, phase = needs.device.low, deciding_phase(found)
    if needed <= found.limit:
        return (
            f"no layout surely fits in {gib(found.limit)} GiB; some may fit, or only without "
            f"fragmentation (--tight ranks them). The nearest needs {gib(needed)} to {gib(needs.device.high)} GiB{phase}: "
            f"{layout_text(found.least)} ({Row(found.least, limit=found.limit).verdict.word})"
        )
    return (
        f"no layout fits in {gib(found.limit)} GiB: the nearest needs {gib(needed)} GiB, "
        f"{gib(needed - found.limit)} too much{phase}: {layout_text(found.least)} (no other needs 2 % less). "
        "More GPUs (--min-num-gpus finds how many), a shorter sequence or --optimizer-offload-fraction 0.5,1 would help"
    )


def fewest_text(found: Found) -> str:
    """How many GPUs the model needs: to train and to resume."""
    assert found.fewest_gpus is not None
    held = found.asked.env.phases if found.asked is not None else ("load",)
    if "load" not in held:
        return f"{counted(found.fewest_gpus, 'GPU')} {'trains' if found.fewest_gpus == 1 else 'train'} it"
    both = f"{counted(found.fewest_gpus, 'GPU')} {'trains and resumes' if found.fewest_gpus == 1 else 'train and resume'} it"
    if found.fewest_to_train == found.fewest_gpus:
        return both
    return f"{both}; to train only, {counted(found.fewest_to_train or 0, 'GPU')} will do (--phases training)"


def deciding_phase(found: Found) -> str:
    """The phase that the layout that needs least needs it in, where that is not training."""
    assert found.least is not None
    phase = Row(found.least, limit=found.limit).verdict.phase
    return "" if phase == "training" else f" to {DOES[phase].do}"


# -- the document ------------------------------------------------------------------------------------------------------------

LAYOUT = table("plan_layout")
"""The degrees of a `Row`."""
PLAN = table(
    "plan",
    {
        "layout": lambda row: document(LAYOUT, row),
        "layout_text": lambda row: layout_text(row.plan),
        "settings": lambda row: plan_settings(row.plan.job, row.asked),
        "offloaded": _offloaded,
        "likely_low": lambda row: row.plan.tokens_per_s_gpu * row.likely.low,
        "likely_high": lambda row: row.plan.tokens_per_s_gpu * row.likely.high,
        "features_named": lambda row: "+".join(row.plan.features),
        "numerics": lambda row: [name for name in row.plan.features if FEATURES[name].numerics],
        "optimizer_text": lambda row: optimizer_text(row.plan),
        "limit_text": lambda row: row.limit_text,
        "beside_first": beside_first,
        "largest_part": lambda row: row.limited_by[0],
        "stage_peaks": lambda row: [stage.peak_allocated_bytes for stage in row.estimate.stages],
        "launch": _launch,
    },
)
"""The figures of a `Row`."""
WHOLE = table("whole_run", forms={"days_text": lambda run: NOTHING if run.days is None else f"{run.days:,.1f}"})
"""What a whole run takes."""
WORTH = table("worth")
"""What a feature is worth."""
COUNTS = table("counts")
"""How many layouts a search found."""


def found_document(found: Found, rows: Sequence[Row], said: Sequence[str]) -> dict[str, Any]:
    """Schema `megatron-memory-plan/1`, described in docs/reference/json.md."""
    least = found.least
    return {
        "schema": SCHEMA,
        "sentence": " ".join(answer(found, rows)),
        "objective": found.objective,
        "limit_bytes": found.limit,
        "interrupted": found.interrupted,
        "judged": "training" if found.trains_only else "every phase",
        "fewest_gpus": found.fewest_gpus,
        "fewest_gpus_to_train": found.fewest_to_train,
        "space": {name: list(values) for name, values in vars(found.space).items()},
        "counts": {**document(COUNTS, found), "ruled_out": dict(found.illegal.most_common())},
        "plans": [document(PLAN, row) for row in rows],
        "tight_plans": [_apart(row) for row in apart_rows(found)],
        "state_bytes": found.state,
        "least": None if least is None else _least(Row(least, limit=found.limit)),
        "own": _own(found, rows),
        "feature_worth": [document(WORTH, one) for one in first_worth(found)],
        "features_that_pay": [document(WORTH, one) for one in first_paying(found)],
        "assumptions": list(said),
        "warnings": warnings(rows),
    }


def first_worth(found: Found) -> list[Worth]:
    """What each feature of the first plan is worth in it."""
    return [*worth(found.plans[0], found.asked, found.efficiency)] if found.plans and found.asked else []


def first_paying(found: Found) -> list[Worth]:
    """Features that would make the first plan faster."""
    return paying(found.plans[0], found) if found.plans and found.asked else []


def _least(row: Row) -> dict[str, Any]:
    """The layout that needs least."""
    return {"device_bytes": row.verdict.device._asdict(), "layout": layout_text(row.plan)}


def own_text(found: Found, rows: Sequence[Row]) -> str:
    """The run that was planned beside its plans, in words; nothing for a model by its name."""
    mine = _own(found, rows)
    return str(mine["sentence"]) if mine else ""


def _own(found: Found, rows: Sequence[Row]) -> dict[str, Any] | None:
    """The run that was planned, as it came."""
    run = own(found)
    if run is None:
        return None
    row = Row(run.plan, found.efficiency, found.limit)
    said = f"Your run ({layout_text(run.plan)}): {run.plan.tokens_per_s_gpu:,.0f} tokens/s/GPU"
    if rows:
        change = run.plan.tokens_per_s_gpu / rows[0].plan.tokens_per_s_gpu - 1
        said += f", {abs(change):.1%} {'slower' if change < 0 else 'faster'} than 1"
    if run.left_out:
        said += f"; not searched: {all_of(run.left_out)}"
    sentence = f"{said}; {row.verdict.word}."
    return {"sentence": sentence, **_apart(row), "step_s": run.plan.step, "left_out": list(run.left_out)}


def _apart(row: Row) -> dict[str, Any]:
    """A tight plan that is better than the first that fits."""
    plan = row.plan
    return {
        "peak_allocated_bytes": plan.peak_allocated_bytes,
        "tokens_per_s_gpu": plan.tokens_per_s_gpu,
        "layout": layout_text(plan),
        "device_bytes": row.verdict.device._asdict(),
        "verdict": str(row.verdict),
    }
