"""How every search begins and ends: what is refused at once, what is said where nothing is legal, the plans of what was ranked.

Plans with the seconds that `estimate` gives them: a search ranks by the longest of the chains that it knows (`space/chains.py`).

How far a search is, and whether its caller wants more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ..errors import ConfigError, LayoutError, StoppedError, UnsupportedError
from ..job.training_job import TrainingJob
from ..rank.build import build_rank, context_of
from ..rank.declare import Declarer
from ..tape.tensor import total
from ..throughput.machine import Efficiency, machine
from ..throughput.step import step_parts
from .counting import CellsOf, LegalSpace, relaxations
from .found import OBJECTIVES, Found, Plan
from .places import NANOSECONDS, plan_of, shown
from .ranking import Ranking
from .space.axes import Space
from .space.defaults import completed
from .space.stages import different_stages, stands

Progress = Callable[[float, Found], None]
"""Told the share of layouts that are evaluated, and what is found so far: counts, and the best plan."""


def begun(
    base: TrainingJob,
    space: Space | None,
    objective: str,
    limit: int | None,
    efficiency: Efficiency | None,
    *,
    everything: bool,
) -> Found:
    """The result of a search before it looks at anything. Raises UnsupportedError and ConfigError for what cannot be searched."""
    if base.refusal:
        raise UnsupportedError(base.refusal)
    if base.training.global_batch_size is None:
        raise ConfigError("the search needs global_batch_size")
    if objective not in OBJECTIVES:
        raise ConfigError(f"objective {objective!r} is not one of {', '.join(OBJECTIVES)}")
    whole = completed(space or Space(), base, everything=everything)
    return Found(whole, base.gpu.memory_bytes if limit is None else limit, objective, efficiency=efficiency)


def nothing_legal(base: TrainingJob, found: Found, watch: Watch, cells: CellsOf) -> LayoutError:
    """What most layouts break, and which axes would leave something legal."""
    rules = [f"{rule} (layouts: {count:,})" for rule, count in found.illegal.most_common(3)]
    help_ = relaxations(base, found.space, watch.ask, cells)
    return LayoutError(("no layout of the space is legal: " + "; ".join((*rules, *help_)),))


def ended(found: Found, ranking: Ranking, base: TrainingJob, legal: LegalSpace) -> Found:
    """The result with its plans, its front and the layout that needs least memory."""
    timed, value = partial(retimed, efficiency=found.efficiency), OBJECTIVES[ranking.objective]
    found.plans = sorted(map(timed, _plans(ranking, base, legal)), key=value)
    if ranking.apart is not None:
        found.apart = _better(sorted(map(timed, _plans(ranking.apart, base, legal)), key=value), found)
    found.front = [timed(plan_of(base, legal, place)) for place in ranking.fastest_by_memory()]
    found.least = timed(plan_of(base, legal, ranking.least)) if ranking.least else None
    return found


def _better(tight: list[Plan], found: Found) -> list[Plan]:
    """The tight plans that are better than the first one that fits, all of them where none does."""
    value = OBJECTIVES[found.objective]
    return [one for one in tight if not found.plans or value(one) < value(found.plans[0])]


def _plans(ranking: Ranking, base: TrainingJob, legal: LegalSpace) -> list[Plan]:
    """The best plans, or the best ideas; the plan that is shown of an idea may be behind another idea's."""
    if not ranking.folded:
        return [plan_of(base, legal, place) for _, _, place in ranking.top]
    ideas = [[plan_of(base, legal, place) for _, _, place in alike] for alike in ranking.by_idea().values()]
    return [shown(alike) for alike in ideas]


def retimed(plan: Plan, efficiency: Efficiency | None) -> Plan:
    """A plan whose schedule is simulated event by event."""
    job = plan.job
    declarer = Declarer(context_of(job))
    stages = different_stages(declarer, job.model, job.layout)
    ranks = [build_rank(declarer, chunks, job.num_microbatches, job.gpu, job.env) for chunks, _ in stages]
    m = machine(job.gpu, efficiency, job.env.network_gbs)
    seconds = total(step_parts(m, declarer, ranks, job.num_microbatches, stands(stages)).values())
    step = round(seconds * NANOSECONDS) / NANOSECONDS
    return dataclasses.replace(plan, step=step, tokens_per_s_gpu=plan.tokens_per_s_gpu * plan.step / step)


@dataclass
class Watch:
    """Asks `stop` between pieces of work on some numbers of GPUs."""

    worlds: tuple[int, ...]
    stop: Callable[[], bool] | None = None
    done: int = 0
    total: int = 0

    def ask(self) -> None:
        """Raise StoppedError where the caller wants no more."""
        if self.stop is None or not self.stop():
            return
        far = f"{self.done:,} of {self.total:,} layouts were evaluated" if self.total else "no layout was evaluated yet"
        shown = ", ".join(map(str, self.worlds if len(self.worlds) < 9 else (*self.worlds[:8], "...")))
        raise StoppedError(
            f"the search on {shown} GPUs was stopped when {far}; narrow the space: fewer num_gpus, one "
            "tensor_model_parallel_size or recompute, one pipeline_model_parallel_size"
        )
