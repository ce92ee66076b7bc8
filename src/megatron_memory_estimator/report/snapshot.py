"""A memory snapshot in words and as a document: what was alive, who made it, and why memory ran out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from ..estimator import estimate
from ..evidence.account import Account, Group, OutOfMemory, lines
from ..evidence.beside import Beside, Closer, beside, closer
from ..evidence.trials import options
from ..job.training_job import TrainingJob
from ..tape.tensor import DTYPE_BYTES
from ..wording import all_of, counted
from .markup import escape
from .quantities import document, gib, table

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA = "megatron-memory-snapshot/1"
MOMENTS = {"peak": "at the peak", "oom": "when memory ran out", "end": "at the dump"}
LITTLE = 2**20
"""Bytes that are worth a word."""


def sentence(found: Account) -> str:
    """What the snapshot says first: whether and why memory ran out, and what was alive."""
    parts = [f"{part} {gib(size)}" for part, size in found.parts.items() if size >= LITTLE]
    held = f"{gib(found.nbytes)} GiB alive {MOMENTS[found.moment]}{f': {all_of(parts)}' if parts else ''}"
    whose = "" if found.whole or found.moment != "peak" else f" (of the trace: {gib(found.replay.start)} GiB are older)"
    if found.oom is None or found.moment != "oom":
        return f"{held}{whose}."
    return f"{out_of_memory(found.oom)} {held}."


def out_of_memory(oom: OutOfMemory) -> str:
    """Why a request was not served."""
    free = (
        f"{gib(oom.free)} GiB free on the device, {gib(oom.unused)} GiB unused in torch (largest hole {gib(oom.hole)})"
    )
    said = f"Out of memory: {gib(oom.asked)} GiB asked, {free}"
    if oom.missing:
        return f"{said}: {gib(oom.missing)} GiB too much, whatever the allocator does."
    if oom.fragmented:
        return f"{said}: fragmentation; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True would have served it."
    return f"{said}: enough of it is free, so a limit of the process, or another process, was in the way."


def snapshot_lines(found: Account, top: int) -> Iterator[str]:
    """The text report, marked up."""
    yield f"[bold]{escape(sentence(found))}[/]"
    shown, rest = lines(found, top)
    groups = [*shown, *([rest] if rest is not None else [])]
    sizes = [gib(group.nbytes) for group in groups]
    counts = [str(group.blocks) for group in groups]
    wide, many = max(map(len, sizes), default=0), max(map(len, counts), default=0)
    parts = max((len(group.site.part) for group in groups), default=0)
    yield f"[bold]{'GiB':>{wide}}  {'blocks':>{max(many, 6)}}  {'part':{parts}}  tensor[/]"
    for group, size, count in zip(groups, sizes, counts, strict=True):
        where = f"  [dim]{escape(group.site.where)}[/]" if group.site.where else ""
        yield f"{size:>{wide}}  {count:>{max(many, 6)}}  {group.site.part:{parts}}  {escape(group.site.tensor)}{where}"
    yield from _torch_lines(found)
    yield from _step_lines(found)
    yield from (f"note: {escape(note)}" for note in notes(found))


def _torch_lines(found: Account) -> Iterator[str]:
    one = found.snapshot
    yield (
        f"At the dump torch had {gib(one.reserved)} GiB of device {one.device}: {gib(one.allocated)} GiB in tensors, "
        f"{gib(one.reserved - one.allocated - one.pending)} GiB unused (largest hole {gib(one.largest_hole)})"
        f"{f', {gib(one.pending)} GiB wait for other streams' if one.pending else ''}."
    )
    private = [pool for pool in found.pools if pool.private]
    if private:
        held, used = sum(pool.reserved for pool in private), sum(pool.allocated for pool in private)
        yield f"Private pools (CUDA graphs): {gib(held)} GiB, {gib(used)} GiB in tensors; they serve nothing else."
    if found.in_the_way and one.reserved - one.allocated >= LITTLE:
        yield f"In segments that are half empty: {_listed(found.in_the_way)}."


def _step_lines(found: Account) -> Iterator[str]:
    if found.piled:
        yield f"Each pass leaves something behind: {_listed(found.piled)}."
    if len(found.steps) < 2:
        return
    peaks, ends = [gib(step.peak) for step in found.steps], [gib(step.end) for step in found.steps]
    yield f"{counted(len(found.steps), 'step')}: peaks {', '.join(peaks)}; behind them {', '.join(ends)} GiB."
    if found.grown and found.steps[-1].end - found.steps[-2].end >= LITTLE:
        yield f"The last step keeps more: {_listed(found.grown)}."


def _listed(groups: tuple[Group, ...], most: int = 3) -> str:
    """The groups with most bytes, in words."""
    said = [
        f"{gib(group.nbytes)} GiB {group.site.tensor}{f' ({group.site.where})' if group.site.where else ''}"
        for group in groups[:most]
        if group.nbytes >= LITTLE
    ]
    return all_of(said) if said else "less than a MiB"


def notes(found: Account) -> list[str]:
    """What the snapshot does not say."""
    one, replay = found.snapshot, found.replay
    said = list(one.notes)
    if not one.events:
        said.append("it has no trace: only the end is known")
    elif replay.start:
        said.append(
            f"the trace begins with {gib(replay.start)} GiB alive"
            + (f", and {counted(len(replay.unmatched), 'free')} of it have their names" if replay.unmatched else "")
            + ": record from the construction of the model on, and longer"
        )
    if one.devices > 1:
        said.append(f"it has {one.devices} devices; this is {one.device} (--device)")
    return said


class Ran(NamedTuple):
    """A snapshot's account beside the run that made it."""

    found: Account
    job: TrainingJob
    stages: int
    beside: Beside
    closer: Closer | None

    @property
    def sentence(self) -> str:
        """How much of the snapshot are tensors of the run."""
        one = self.beside
        return (
            f"The run explains {one.explained:.1%} of {gib(one.seen)} GiB (stage {one.pp_rank} of {self.stages}, {one.moment}, "
            f"{gib(one.predicted)} GiB predicted); {gib(one.seen - one.agreed)} GiB are in the snapshot alone, "
            f"{gib(one.predicted - one.agreed)} GiB in the prediction alone."
        )

    @property
    def hints(self) -> list[str]:
        """What would explain what is left."""
        return list(_hints(self))

    @property
    def document(self) -> dict[str, Any]:
        """The same as values."""
        one = self.beside
        return {
            "sentence": self.sentence, "pp_rank": one.pp_rank, "moment": one.moment, "predicted_bytes": one.predicted,
            "agreed_bytes": one.agreed, "explained": one.explained, "only_seen": [document(LEFT, left) for left in one.only_seen],
            "only_predicted": [document(LEFT, left) for left in one.only_predicted], "hints": self.hints,
            "settings": dict(self.closer.settings) if self.closer else {},
        }  # fmt: skip


def ran(found: Account, job: TrainingJob) -> Ran:
    """A snapshot's account beside its run. Raises as `estimate`."""
    run = estimate(job)
    now = beside(found, run)
    return Ran(found, job, len(run.stages), now, closer(found, job, now))


def _hints(one: Ran) -> Iterator[str]:
    ratio, again = one.beside.ratio, one.beside.again
    if one.beside.weights is not None and one.closer is None:
        theirs, mine = (size / DTYPE_BYTES[one.job.training.params_dtype] / 1e6 for size in one.beside.weights)
        yield (
            f"param buffers hold {theirs:,.2f} M parameters, those of the run {mine:,.2f} M on stage {one.beside.pp_rank}: another model, "
            "vocabulary, stage or layout"
        )
    if ratio is not None:
        times, nbytes = ratio
        kept = [left for left in one.beside.only_predicted if left.part == "activations"]
        of_experts = sum(left.nbytes for left in kept if ".experts." in left.tensor)
        rows = 2 * of_experts > sum(left.nbytes for left in kept)
        what = "the experts of this rank got so many times the rows (--router-imbalance)" if rows else (
            "the microbatch had so many times the tokens: another length, padding, or packed rows"
        )  # fmt: skip
        yield f"{gib(nbytes)} GiB of what is left are {times:.3g} times tensors of the run: {what}"
    elif one.closer is None and again > max((one.beside.seen - one.beside.agreed) / 2, LITTLE):
        yield f"{gib(again)} GiB of what is left are tensors of the run once more: another microbatch is in flight, or they are kept twice"
    if one.closer is not None:
        there = one.closer.beside
        less = gib(one.beside.apart - there.apart)
        yield f"with {options(one.closer.settings)} the run explains {there.explained:.1%}, and {less} GiB less stand apart"
    if one.beside.asked:
        yield f"memory ran out at {one.beside.asked}"


def ran_lines(one: Ran, top: int) -> Iterator[str]:
    """The comparison in words, marked up."""
    yield f"[bold]{escape(one.sentence)}[/]"
    for hint in one.hints:
        yield f"{hint[0].upper()}{escape(hint[1:])}."
    for title, left in (
        ("in the snapshot alone", one.beside.only_seen),
        ("in the prediction alone", one.beside.only_predicted),
    ):
        worth = [each for each in left if each.nbytes >= LITTLE]
        for each in worth[:top]:
            where = f"  [dim]{escape(each.where)}[/]" if each.where else ""
            yield f"{title}: {gib(each.nbytes)} GiB, {counted(each.blocks, 'block')}, {each.part}: {escape(each.tensor)}{where}"
        if worth[top:]:
            yield f"{title}: {gib(sum(each.nbytes for each in worth[top:]))} GiB in {counted(len(worth[top:]), 'more line')}"


LEFT = table("snapshot_left")
SNAPSHOT = table(
    "snapshot",
    {
        "run": lambda found: None,
        "schema": lambda found: SCHEMA,
        "sentence": sentence,
        "notes": notes,
        "events": lambda found: len(found.snapshot.events),
    },
)


def snapshot_document(found: Account, run: Ran | None = None) -> dict[str, Any]:
    """Schema `megatron-memory-snapshot/1`, described in docs/reference/json.md."""
    return {**document(SNAPSHOT, found), "beside": run.document if run else None}


def print_snapshot(found: Account, console: Console, top: int, run: Ran | None = None) -> None:
    """The text report, the comparison with a run first."""
    for line in (*(ran_lines(run, top) if run else ()), *snapshot_lines(found, top)):
        console.print(line, highlight=False, soft_wrap=True)
