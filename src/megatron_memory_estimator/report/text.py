"""What `estimate` prints: a configuration summary, a table of stages, the peak, and which GPUs it fits.

The phases of a step of reinforcement learning as bars of device memory against the GPU's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..device.outside import outside_terms
from ..device.rollout import asleep
from ..device.terms import Range, Term
from ..device.verdict import explain_terms
from ..estimator import Estimate, Stage
from ..job.assumption import shorts_of, stands_above
from ..job.choices import ROUTING_SHORT
from ..job.training_job import TrainingJob
from ..modules.counts import count_parameters
from ..routing import Routing, routing
from ..versions import assumptions
from .bars import LEAST, MARKS, MOST, Mark, bar, legend_of, marked_up, print_bars
from .document import SHARES, conversion, features_text, per_node, recompute_text, share_bytes
from .markup import escape
from .quantities import bounds_text, gib, plural
from .screen import captured, room_beside
from .stage_table import stage_table
from .verdict import gpu_table, next_step, others_line, verdict_line

if TYPE_CHECKING:
    from rich.console import Console

# -- phases of reinforcement learning ----------------------------------------------------------------------------------

ENGINE = "engine"
ROLLOUT_MARKS = {**MARKS, ENGINE: Mark("\u259a", "E", "red")}
SHARE_OF = {
    "weights": "weights",
    "reference": "weights",
    "reference weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "forward without gradients": "activations",
}
"""What a term of a phase is drawn as; the others are "other"."""


class Drawn(NamedTuple):
    """A phase of a stage: its device memory, and what it is made of at least in bytes, in the order of the marks."""

    name: str
    pp_rank: int
    device: Range
    shares: tuple[int, ...]


def print_rollout(estimate: Estimate, console: Console) -> None:
    """A line for each phase, of the stage where it takes most: the bar is what it takes at least."""
    memory = estimate.job.gpu.memory_bytes
    drawn = [most_of(several) for several in zip(*map(list, map(phases_drawn, estimate.stages)), strict=True)]
    if len(drawn) == 1:
        return
    blocks = "utf" in console.encoding.lower()
    cells: list[tuple[str, ...]] = [("phase", "stage", "needs GiB")]
    cells += [(one.name, str(one.pp_rank), bounds_text(one.device)) for one in drawn]
    if len(estimate.stages) == 1:
        cells = [(name, size) for name, _, size in cells]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    room = max(min(console.width, MOST) - sum(widths) - 2 * len(widths), LEAST)
    scale = max(memory, *(sum(one.shares) for one in drawn)) / (room - 1)
    edge = round(memory / scale)
    legend = legend_of(ROLLOUT_MARKS, blocks=blocks)
    if sum(len(text) for text, _ in legend) > console.width - sum(widths) - 2 * len(widths):
        console.print(marked_up(legend), highlight=False)
        legend = []
    lines = [legend, *(bar(one.shares, scale, edge, blocks=blocks, marks=ROLLOUT_MARKS) for one in drawn)]
    for (name, *others), line in zip(cells, lines, strict=True):
        figures = [f"{text:>{width}}" for text, width in zip(others, widths[1:], strict=True)]
        text = escape("  ".join([f"{name:<{widths[0]}}", *figures, ""])) + marked_up(line)
        console.print(text, highlight=False, no_wrap=True, crop=False)


def most_of(several: Sequence[Drawn]) -> Drawn:
    """The stage where a phase takes most."""
    return max(several, key=lambda one: (one.device.high, one.device.low))


def phases_drawn(stage: Stage) -> Iterator[Drawn]:
    """The phases of a step that verdicts hold, in their order, training where it is."""
    outside = sum(term.low for term in outside_terms(stage.job, stage.rank.context))
    held = [phase for phase in stage.rollout if phase.name in stage.phase_ranges]
    for phase in held:
        if phase.name == "weight_sync":
            yield _training(stage, outside)
        shares = (*_shares(phase.trainer, outside), phase.beside.low)
        yield Drawn(phase.name, stage.pp_rank, stage.phase_ranges[phase.name], shares)
    if all(phase.name != "weight_sync" for phase in held):
        yield _training(stage, outside)


def _training(stage: Stage, outside: int) -> Drawn:
    engine = asleep(stage.job)
    beside = engine.low if engine else 0
    *shares, other = share_bytes(stage).values()
    return Drawn("training", stage.pp_rank, stage.phase_ranges["training"], (*shares, other + outside, beside))


def _shares(terms: tuple[Term, ...], outside: int) -> tuple[int, ...]:
    sizes = dict.fromkeys(SHARES, 0)
    for term in terms:
        sizes[SHARE_OF.get(term.name, "other")] += term.low
    sizes["other"] += outside
    return tuple(sizes.values())


PHASES = {
    "first_step": "The first step of a fresh run",
    "build": "Building the model",
    "load": "Loading a checkpoint with optimizer state",
    "save": "Saving a checkpoint",
}


LEAST_BARS, MOST_BARS = 3, 12
"""Stages that are drawn: the fullest and the ends."""
BESIDE_BARS = 2
"""The line of heads, and the one that says what the other stages have."""


class Shown(NamedTuple):
    """What a report shows beside the verdict and the bars."""

    table: bool = False
    assumptions: bool = False
    verbose: bool = False
    all_gpus: bool = False
    command: tuple[str, ...] = ()
    """The words that say the run to a verb, for the line that says what to type next."""
    next: bool = True
    """Whether that line stands at the end."""


def print_estimate(estimate: Estimate, console: Console, shown: Shown = Shown()) -> None:  # noqa: B008
    """The text report: the verdict first, a bar per stage, what was assumed that matters, and the command to type next.

    A terminal has as many stages as leave the verdict on its screen.
    """
    job, whole, every = estimate.job, shown.table or shown.verbose, shown.assumptions or shown.verbose
    uneven = routing(estimate) if whole or not every else None

    def above() -> None:
        console.print(verdict_line(estimate), highlight=False)
        for line in summary(estimate) if whole else (run_line(estimate),):
            console.print(line, highlight=False)
        for note in filter(stands_above, job.assumptions):
            console.print(f"assumed: {note}", highlight=False, markup=False)

    def below() -> None:
        _below(estimate, uneven, console, shown)

    head, foot = captured(console, above), captured(console, below)
    console.file.write(head)
    if whole:
        console.print("\nGiB per GPU at each pipeline stage's peak:")
        console.print(stage_table(estimate.stages, console))
        for line in result(estimate, uneven):
            console.print(line, highlight=False)
    else:
        lines = room_beside(console, head, foot) - BESIDE_BARS
        print_bars(estimate.stages, job.gpu.memory_bytes, console, min(MOST_BARS, max(lines, LEAST_BARS)))
    console.file.write(foot)


def _below(estimate: Estimate, uneven: Routing | None, console: Console, shown: Shown) -> None:
    """What stands below the stages."""
    job, every = estimate.job, shown.assumptions or shown.verbose
    if any(stage.rollout for stage in estimate.stages):
        print_rollout(estimate, console)
    for line in host_lines(estimate):
        console.print(line, highlight=False)
    if shown.all_gpus:
        console.print(gpu_table(estimate))
    else:
        console.print(others_line(estimate, console.width), highlight=False)
    if shown.verbose:
        for line in details(estimate):
            console.print(line, highlight=False, soft_wrap=True)
    if every:
        print_notes(estimate, console)
    else:
        if said := assumptions(estimate):
            console.print(assumed_line(said, uneven), highlight=False, markup=False)
        print_warnings(job, console)
    for line in next_step(estimate, shown.command, console.width) if shown.next else ():
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def print_notes(estimate: Estimate, console: Console) -> None:
    """What was decided for the user, and what is not as it seems."""
    for note in assumptions(estimate):
        if not stands_above(note):
            console.print(f"assumed: {note}", highlight=False, markup=False)
    print_warnings(estimate.job, console)


def print_warnings(job: TrainingJob, console: Console) -> None:
    """What is not as it seems."""
    for note in job.warnings:
        console.print(f"warning: {note}", highlight=False, markup=False)


def assumed_line(notes: Sequence[str], uneven: Routing | None) -> str:
    """What was assumed that moves the peak by more than 1 %, in a few words each."""
    short = shorts_of((note for note in notes if not stands_above(note)), {ROUTING_SHORT})
    if uneven and uneven.peaks[2] > 1.01 * uneven.peaks[1]:
        low, _, high = uneven.peaks
        short.append(f"{ROUTING_SHORT} (peak {gib(low)} to {gib(high)})")
    listed = f"--assumptions lists {'all ' if len(notes) > 1 else ''}{len(notes)}"
    return (
        f"Not given, assumed: {', '.join(short)}; {listed}"
        if short
        else f"Not given, assumed: nothing that moves the peak by 1 %; {listed}"
    )


def run_line(estimate: Estimate) -> str:
    """The run in one line: the model, the GPUs and degrees above 1, the batch, precision and recomputation."""
    job = estimate.job
    layout, t = job.layout, job.training
    vp = len(estimate.stages[0].rank.plans)
    degrees = {"tp": layout.tp, "gtp": layout.gtp, "pp": layout.pp, "vpp": vp, "cp": layout.cp, "ep": layout.ep,
               "etp": layout.etp if job.model.num_moe_experts else 1, "egtp": layout.egtp, "dp": layout.dp}  # fmt: skip
    words = ", ".join(f"{name} {degree}" for name, degree in degrees.items() if degree > 1)
    gpus = f"{layout.world_size} GPU{plural(layout.world_size)}"
    said = [f"seq {t.seq_length}", f"mbs {t.micro_batch_size}", t.params_dtype]
    if t.recompute_granularity:
        said.append(f"recompute {recompute_text(t)}")
    name = (job.name or "model").rsplit("/", 1)[-1]
    return (
        f"[bold]{escape(name)}[/bold], {gpus}{': ' + words if words else ''}; {', '.join([*said, *features_text(t)])}"
    )


def summary(estimate: Estimate) -> list[str]:
    """Model, layout and training in a few lines."""
    job = estimate.job
    m, layout, t = job.model, job.layout, job.training
    count = count_parameters(m)
    active = f", {count.active / 1e9:.2f} B active" if m.has_moe else ""
    lines = [
        f"[bold]{escape(job.name or 'model')}[/bold]  {count.total / 1e9:.2f} B parameters{active}  ({escape(job.source.split(' (')[0])})",
        f"  architecture  {architecture(job)}",
    ]
    extras = _extras(job)
    if extras:
        lines.append(f"  with          {extras}")
    expert = f", expert dp {layout.expert_dp}" if m.num_moe_experts else ""
    vp = len(estimate.stages[0].rank.plans)
    shape = [f"tp {layout.tp}", f"pp {layout.pp}"]
    if vp > 1:
        shape.append(f"vpp {vp}")
    shape += [f"cp {layout.cp}"]
    if layout.shards_weights:
        shape += [f"weight shards {layout.tp * layout.gtp}", f"of experts {layout.etp * layout.egtp}"][: 1 + m.has_moe]
    if m.num_moe_experts:
        shape += [f"ep {layout.ep}", f"etp {layout.etp}"]
    sp = "on" if layout.sequence_parallel else "off"
    gpus = f"{layout.world_size} GPU{plural(layout.world_size)}"
    lines.append(f"  layout        {gpus}: {', '.join(shape)}, dp {layout.dp}{expert}, sequence parallel {sp}")
    lines.append(
        f"  training      {t.params_dtype}, sequence {t.seq_length}, micro batch {t.micro_batch_size}, global batch "
        f"{t.global_batch_size} ({job.num_microbatches} microbatch{'es' if job.num_microbatches > 1 else ''}), {t.optimizer}"
        f"{' distributed' if t.use_distributed_optimizer else ''}, recompute {recompute_text(t)}, attention {job.kernel}"
    )
    features = "; ".join(features_text(t))
    if features:
        lines.append(f"  features      {features}")
    return lines


def architecture(job: TrainingJob) -> str:
    """Layers, width, heads and MLP."""
    m = job.model
    kinds = ", ".join(
        f"{count} {kind}" for kind, count in {k: m.kinds.count(k) for k in dict.fromkeys(m.kinds)}.items()
    )
    heads = f"{m.num_attention_heads} heads"
    if not m.multi_latent_attention and m.groups != m.num_attention_heads:
        heads += f" in {m.groups} groups"
    vocabulary = m.vocab_size or m.padded_vocab_size
    return f"{m.num_layers} layers ({kinds}), hidden {m.hidden_size}, {heads}, ffn {m.ffn}, vocabulary {vocabulary}"


def _extras(job: TrainingJob) -> str:
    m = job.model
    found = []
    if m.num_moe_experts:
        shared = (
            f", shared width {m.moe_shared_expert_intermediate_size}" if m.moe_shared_expert_intermediate_size else ""
        )
        found.append(f"{m.num_moe_experts} experts of width {m.moe_ffn}, top {m.moe_router_topk}{shared}")
    if m.multi_latent_attention:
        found.append(f"multi-latent attention (q rank {m.q_lora_rank}, kv rank {m.kv_lora_rank})")
    if m.mtp:
        found.append(f"{m.mtp} MTP layer{'s' if m.mtp > 1 else ''}")
    if m.share_embeddings_and_output_weights:
        found.append("tied embeddings")
    return "; ".join(found)


def result(estimate: Estimate, uneven: Routing | None) -> list[str]:
    """The stage with the highest peak, as allocated, reserved and device memory."""
    top = estimate.peak_stage
    known = top.allocated.phases.get("first_step")
    first = bounds_text(known) if known else gib(top.first_step_peak_allocated_bytes)
    lines = [
        f"Peak: stage {top.pp_rank}, {gib(top.peak_allocated_bytes)} GiB allocated (first step {first}), "
        f"{bounds_text(top.reserved)} GiB reserved, {bounds_text(top.device_used)} GiB used (nvidia-smi), "
        f"needs {bounds_text(top.device)} GiB",
        f"At the peak: {top.peak.candidate.label}",
    ]
    if uneven:
        low, typical, high = (gib(peak) for peak in uneven.peaks)
        a, b, c = (f"{factor:.2f}" for factor in uneven.factors)
        when = uneven.phase.replace("_", " ")
        lines.append(
            f"Routing ({when}): {low}, {typical}, {high} GiB with {a}, {b}, {c} times the rows of balanced routing on one rank"
        )
    for phase in top.phases:
        if phase.high > top.peak_allocated_bytes:
            verb = "exceeds" if phase.low > top.peak_allocated_bytes else "may exceed"
            figure = " to ".join(dict.fromkeys((gib(phase.low), gib(phase.high))))
            lines.append(f"{PHASES[phase.name]} {verb} training: {figure} GiB allocated")
    return lines


def host_lines(estimate: Estimate) -> list[str]:
    """Host memory of a run that offloads."""
    top = estimate.peak_stage
    if not any("offload" in term.name for term in top.host):
        return []
    node = per_node(top)
    return [
        f"Host memory: {gib(top.host_bytes.low, 1)} to {gib(top.host_bytes.high, 1)} GiB per GPU, {gib(node.low, 0)} to "
        f"{gib(node.high, 0)} per node"
    ]


def details(estimate: Estimate) -> list[str]:
    """With --verbose: every term between the allocated peak and device memory of the peak stage, and each chunk."""
    top = estimate.peak_stage
    lines = ["", f"From allocated to device memory, stage {top.pp_rank} (GiB):"]
    for term in explain_terms(estimate.job, top.rank, top.peak):
        lines.append(f"  {term.name:38} {gib(term.low):>7} - {gib(term.high):>7}   {term.source}")
    lines.append("Allocated in other phases, where the device has room (GiB):")
    for phase in top.phases:
        lines.append(f"  {phase.name:38} {gib(phase.low):>7} - {gib(phase.high):>7}   {phase.source}")
        lines += [
            f"    {term.name:36} {gib(term.low):>7} - {gib(term.high):>7}   {term.source}" for term in phase.terms
        ]
        if phase.lower:
            lines.append(f"    less: {phase.lower}")
    lines.append("Host memory of one GPU's process (GiB):")
    lines += [f"  {one.name:38} {gib(one.low):>7} - {gib(one.high):>7}   {one.source}" for one in top.host]
    lines.append("Host memory before the run, where Hugging Face weights are converted (GiB):")
    lines += [f"  {one.name:38} {gib(one.low):>7} - {gib(one.high):>7}   {one.source}" for one in conversion(estimate)]
    lines.append("Model chunks:")
    for stage in estimate.stages:
        for plan in stage.rank.plans:
            span = plan.chunk.layers
            shown = f"layers {span[0]}-{span[-1]}" if span else "no layers"
            lines.append(
                f"  stage {stage.pp_rank} chunk {plan.chunk.vp_stage}: {shown}, keeps {gib(plan.saved_bytes, 3)} GiB per "
                f"microbatch, at most {stage.rank.schedule.per_chunk[plan.chunk.vp_stage]} in flight"
            )
    return lines
