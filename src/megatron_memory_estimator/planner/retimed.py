"""Plans with the seconds that `estimate` gives them: a search ranks by the longest of the chains that it knows (`space/chains.py`)."""

from __future__ import annotations

import dataclasses

from ..rank.build import build_rank, context_of
from ..rank.declare import Declarer
from ..tape.tensor import total
from ..throughput.machine import Efficiency, machine
from ..throughput.step import step_parts
from .found import Plan
from .places import NANOSECONDS
from .space.stages import different_stages, stands


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
