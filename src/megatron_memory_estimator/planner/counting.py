"""Which layouts of a space are legal, structure by structure; those that are not are counted by the first rule that they break.

One legal layout of a space, from which the rules are asked one axis at a time.

The pipelines of a space: stages, chunks, and how layers are split over them.

Work of layers, MTP depths and the loss in seconds of a job's GPU: what generated layouts are balanced by.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from functools import cached_property
from itertools import product
from math import gcd, prod
from random import Random
from typing import Any, NamedTuple

from ..dataclass import dataclass
from ..errors import ConfigError
from ..job.layout import Layout
from ..job.pipeline import split_layers
from ..job.training import Training
from ..job.training_job import TrainingJob
from ..legality import Violation, balanced_split, even_layout, of_kinds, pipeline_sides, placed, stated_violations
from ..legality.declared import declared_units, refused
from ..legality.pipeline import pipeline
from ..legality.precision import gpu
from ..rank.build import context_of
from ..rank.declare import Declarer
from ..rules import broken
from ..throughput.machine import machine
from ..throughput.stages import unit_time
from .space.axes import DEGREES, WHOLE, Space
from .space.borders import EVEN, Work, bordered, generated_layout, together
from .space.cells import legal_cells
from .space.choices import Option, Style, options, styles, training_with
from .space.defaults import completed
from .space.features import Variant, variants
from .space.legal import hopeless
from .space.modelled import NO_RECOMPUTATION, asks, recompute_sets, unsupported
from .space.points import Cells, Grid, Point, Shape, at_point, heads_in_fours, structure_of

Ask = Callable[[], None]
"""Raises StoppedError where the caller wants no more."""


@dataclass(frozen=True)
class LegalStyle:
    """A style of a structure with its legal cells and trainings."""

    style: Style
    cells: Cells
    trainings: tuple[tuple[str, Training], ...]
    options: tuple[Option, ...]

    @property
    def layouts(self) -> int:
        """Layouts to evaluate."""
        return prod((len(self.cells), *self.choices))

    @property
    def choices(self) -> tuple[int, int]:
        """How many trainings and options each cell has."""
        return len(self.trainings), len(self.options)


@dataclass(frozen=True)
class LegalStructure:
    """The points of one structure with their legal styles."""

    grid: Grid
    styles: tuple[LegalStyle, ...]

    @property
    def layouts(self) -> int:
        """Layouts to evaluate."""
        return sum(style.layouts for style in self.styles)


@dataclass(frozen=True)
class LegalVariant:
    """A variant of the job with its legal structures."""

    variant: Variant
    structures: tuple[LegalStructure, ...]

    @property
    def styles(self) -> list[tuple[LegalStructure, LegalStyle]]:
        """Every style with its structure."""
        return [(structure, style) for structure in self.structures for style in structure.styles]

    @property
    def layouts(self) -> int:
        """Layouts to evaluate."""
        return sum(style.layouts for _, style in self.styles)


@dataclass(frozen=True)
class LegalSpace:
    """The pipelines of a space, and its variants. Cells have the numbers of pipelines."""

    shapes: tuple[Shape, ...]
    variants: tuple[LegalVariant, ...]

    @property
    def layouts(self) -> int:
        """Layouts to evaluate."""
        return sum(one.layouts for one in self.variants)

    def values(self, axis: str) -> set[Any] | None:
        """The values of an axis that a legal layout has; None for an axis whose values are not told apart here."""
        every = [(one, structure.grid, style) for one in self.variants for structure, style in one.styles]
        if axis == "precision":
            return {one.variant.precision for one, _, _ in every}
        if axis == "micro_batch_size":
            return {grid.micro[at] for _, grid, style in every for at in style.cells.micro}
        if axis in DEGREES:
            place = DEGREES.index(axis)
            return {grid.points[at][place] for _, grid, style in every for at in style.cells.point}
        stages = {"pipeline_model_parallel_size": "pp", "virtual_pipeline_model_parallel_size": "vp"}.get(axis)
        if stages is None:
            return None
        return {getattr(self.shapes[at], stages) for _, _, style in every for at in style.cells.shape}


class _Choices(NamedTuple):
    """Legal sets of recomputation and settings of the optimizer, and the rules that the others break, one for each pair."""

    trainings: tuple[tuple[str, Training], ...]
    options: tuple[Option, ...]
    broken: list[str]


Cuts = dict[tuple[int, int], tuple[Shape | Violation, ...]]
"""Pipelines by stages and chunks."""


@dataclass(frozen=True)
class Known:
    """What was found for other spaces of the same model and GPU: pipelines, and the rules of every variant."""

    cuts: Cuts = field(default_factory=dict)
    rules: dict[Any, Rules] = field(default_factory=dict)

    def of(self, base: TrainingJob, space: Space) -> Rules:
        """The rules of a variant. They see no batch and no phases that are judged, of a space no GPUs, and of degrees only whether there is
        context parallelism."""
        alone = dataclasses.replace(space, **dict.fromkeys(WHOLE, ()))
        job = dataclasses.replace(base, training=dataclasses.replace(base.training, global_batch_size=None))
        several = {cp > 1 for cp in space.context_parallel_size}
        key = job.model, job.gpu, job.training, dataclasses.replace(job.layout, world_size=1), alone, frozenset(several)
        if key not in self.rules:
            self.rules[key] = Rules(job, space)
        return self.rules[key]


def legal_space(
    base: TrainingJob, space: Space, ruled_out: Counter[str], ask: Ask, known: Known | None = None
) -> LegalSpace:
    """The legal layouts of a space; counts what is ruled out. `known` is of the same job on other numbers of GPUs.

    Raises ConfigError where no variant has what shall be recomputed.
    """
    known = known or Known()
    pipelines = list(shapes(base, space, known.cuts, ask))
    found, refused = [], None
    for variant in variants(base, space.precision, space.features):
        aware = variant.job.training.use_precision_aware_optimizer and not base.training.use_precision_aware_optimizer
        own = dataclasses.replace(space, use_precision_aware_optimizer=(True,)) if aware else space
        try:
            one = _Legality(variant.job, own, known.of(variant.job, own), pipelines, ruled_out, ask)
        except ConfigError as error:
            refused = error
            continue
        found.append(LegalVariant(variant, one.structures()))
    if refused is not None and not found:
        raise refused
    return LegalSpace(tuple(one for one in pipelines if isinstance(one, Shape)), tuple(found))


def relaxations(base: TrainingJob, space: Space, ask: Ask) -> Iterator[str]:
    """Axes whose usual values would leave something legal."""
    usual = completed(Space(num_gpus=space.num_gpus), base, everything=True)
    for axis in dataclasses.fields(Space):
        mine, values = getattr(space, axis.name), getattr(usual, axis.name)
        if set(values) <= set(mine):
            continue
        wider = legal_space(base, dataclasses.replace(space, **{axis.name: values}), Counter(), ask)
        if wider.layouts:
            found = wider.values(axis.name)
            values = tuple(value for value in values if found is None or value in found)
            shown = ", ".join(map(str, values if len(values) < 9 else (*values[:8], "...")))
            yield f"legal layouts with {axis.name} {shown}: {wider.layouts:,}"


class _Legality:
    """The rules asked of a space, each once for all layouts that it sees as one."""

    def __init__(
        self,
        base: TrainingJob,
        space: Space,
        rules: Rules,
        pipelines: Sequence[Shape | Violation],
        ruled_out: Counter[str],
        ask: Ask,
    ) -> None:
        self.base, self.space, self.rules, self.ruled_out, self.ask = base, space, rules, ruled_out, ask
        instances = base.layout.num_distributed_optimizer_instances
        self.shapes = [one.with_instances(instances) for one in pipelines if isinstance(one, Shape)]
        self.numbers = list(range(len(self.shapes)))
        """The number of each of `shapes` among all."""
        self.broken = [one.rule for one in pipelines if isinstance(one, Violation)]
        """The rules that pipelines break, one for each that is not legal."""
        self.points = [Point(*degrees) for degrees in product(*(getattr(space, axis) for axis in DEGREES))]

    def structures(self) -> tuple[LegalStructure, ...]:
        """The legal cells of every structure; counts what is ruled out."""
        at = self.rules.reference(self.shapes, self.points, self.ask)
        if at is None:
            self._count_all()
            return ()
        training = self.rules.whole_training(at)
        checked = [self.rules.broken(at._replace(shape=shape), training) for shape in self.shapes]
        self.broken += list(filter(None, checked))
        self.numbers = [number for number, rule in enumerate(checked) if not rule]
        self.shapes = [self.shapes[number] for number in self.numbers]
        return tuple(self._structures(at))

    def _count_all(self) -> None:
        """No layout is legal: count the rules that each point breaks in the first shape."""
        sets, options = self.rules.sets, self.rules.options
        each = len(self.space.num_gpus) * len(self.space.micro_batch_size) * len(sets) * len(options)
        for rule in self.broken:
            self.ruled_out[rule] += each * len(self.points)
        for point in self.points if self.shapes else ():
            self.ask()
            for style in styles(self.space, tp=point.tp > 1, cp=point.cp > 1):
                at = Reference(self.shapes[0], point, style, sets[0][1], options[0])
                rule = self.rules.broken(at, self.rules.whole_training(at)) or "no legal layout was found with it"
                self.ruled_out[rule] += each * len(self.shapes)

    def _structures(self, reference: Reference) -> Iterator[LegalStructure]:
        asked = self.rules.asked
        groups: dict[object, list[Point]] = {}
        for point in self.points:
            heads = heads_in_fours(self.base.model, point.tp) if "heads_in_fours" in asked else ()
            groups.setdefault((structure_of(self.base.model, point), heads), []).append(point)
        for points, micro in product(groups.values(), self._sizes(asked)):
            grid = Grid(tuple(points), self.space.num_gpus, micro)
            known: dict[object, tuple[Cells, Counter[str]]] = {}
            legal = []
            for style in styles(self.space, tp=points[0].tp > 1, cp=points[0].cp > 1):
                self.ask()
                one = self._style(reference, grid, style, known)
                if one is not None:
                    legal.append(one)
            if legal:
                yield LegalStructure(grid, tuple(legal))

    def _sizes(self, asked: frozenset[str]) -> list[tuple[int, ...]]:
        """Micro batch sizes with the same tensors: one sequence apart from several, odd from even, where layers ask for it."""
        groups: dict[object, list[int]] = {}
        for size in self.space.micro_batch_size:
            alike = "several_sequences" in asked and size > 1, "heads_in_fours" in asked and gcd(size, 4)
            groups.setdefault(alike, []).append(size)
        return [tuple(sizes) for sizes in groups.values()]

    def _style(
        self, reference: Reference, grid: Grid, style: Style, known: dict[object, tuple[Cells, Counter[str]]]
    ) -> LegalStyle | None:
        """The legal cells of a style. Cells that were counted for a style with the same legal points are in `known`."""
        cells_of_point = len(grid.worlds) * len(grid.micro)
        inner = cells_of_point * len(self.rules.sets) * len(self.rules.options)
        for rule in self.broken:
            self.ruled_out[rule] += inner * len(grid.points)
        if not self.shapes:
            return None
        broken = self._points(reference, grid.points, style)
        for rule in broken:
            if rule:
                self.ruled_out[rule] += inner * len(self.shapes)
        allowed = tuple(not rule for rule in broken)
        if not any(allowed):
            return None
        choices = self._choices(reference._replace(point=grid.points[allowed.index(True)], style=style))
        for rule in choices.broken:
            self.ruled_out[rule] += cells_of_point * len(self.shapes) * sum(allowed)
        each = len(choices.trainings) * len(choices.options)
        if not each:
            return None
        if (allowed, each) not in known:
            counts: Counter[str] = Counter()
            cells = legal_cells(self.base, self.shapes, grid, allowed, each, counts)
            numbered = dataclasses.replace(cells, shape=[self.numbers[shape] for shape in cells.shape])
            known[allowed, each] = numbered, counts
        legal, counts = known[allowed, each]
        self.ruled_out.update(counts)
        return LegalStyle(style, legal, choices.trainings, choices.options) if len(legal) else None

    def _points(self, reference: Reference, points: Sequence[Point], style: Style) -> list[str]:
        """The first rule that each point breaks, or nothing."""
        refused = self.rules.unsupported(style, cp=points[0].cp > 1)
        if refused:
            return [refused] * len(points)
        training = training_with(reference.recompute, reference.option)
        return [self.rules.broken(reference._replace(point=point, style=style), training) for point in points]

    def _choices(self, at: Reference) -> _Choices:
        merged, options = self.rules.sets, self.rules.options

        def broken(recompute: Training, option: Option) -> str:
            return self.rules.broken(at, training_with(recompute, option))

        of_set = {name: broken(one, at.option) for name, one in merged}
        sets = tuple((name, one) for name, one in merged if not of_set[name])
        if not sets:
            return _Choices((), (), [of_set[name] for name, _ in merged for _ in options])
        of_option = {option: broken(sets[0][1], option) for option in options}
        legal = tuple(option for option in options if not of_option[option])
        why = [of_set[name] for name, _ in merged if of_set[name] for _ in options]
        why += [of_option[option] for option in options if of_option[option] for _ in sets]
        return _Choices(sets, legal, why)


TRIES = 1000
"""Layouts tried for a legal one, for each recomputation and optimizer."""


class Reference(NamedTuple):
    """A layout with all that the rules see of it but its GPUs and its batch."""

    shape: Shape
    point: Point
    style: Style
    recompute: Training
    option: Option


class Rules:
    """The rules of legality, asked of references of a space, each once."""

    def __init__(self, base: TrainingJob, space: Space) -> None:
        self.base, self.space = base, space
        self.sets = recompute_sets(base, space)
        self.options = options(space)
        self.units = tuple(declared_units(base.model))
        self.uneven: dict[tuple[str, Point, Style], str] = {}
        self._broken: dict[tuple[Shape, Point, Style, Training], str] = {}
        self._unsupported: dict[tuple[bool, Style], str] = {}
        self._legal: Reference | None = None

    @cached_property
    def asked(self) -> frozenset[str]:
        """What layers ask of their context about the sequences of a microbatch."""
        return asks(self.base, self.space)

    def unsupported(self, style: Style, *, cp: bool) -> str:
        """The rule by which layers are not modelled with or without context parallelism, or nothing."""
        if (cp, style) not in self._unsupported:
            self._unsupported[cp, style] = unsupported(self.base, cp, style)
        return self._unsupported[cp, style]

    def whole_training(self, at: Reference) -> Training:
        """The training of a reference."""
        return training_with(at.recompute, at.option)

    def layout(self, at: Reference) -> Layout:
        """The layout of a reference on as few GPUs as it needs."""
        return at_point(at.shape.layout, at.point, at.style, moe=bool(self.base.model.num_moe_experts))

    def broken(self, at: Reference, training: Training) -> str:
        """The first rule that a reference breaks with a training, or nothing."""
        key = at.shape, at.point, at.style, training
        if key not in self._broken:
            self._broken[key] = self._first_broken(at, training)
        return self._broken[key]

    def _first_broken(self, at: Reference, training: Training) -> str:
        layout = self.layout(at)
        stated = stated_violations(at.shape.of(self.base.model), layout, training, at.shape.group * at.shape.vp * 2)
        first = stated[0].rule if stated else self._uneven(at, layout, training)
        return first or next((one.rule for one in gpu(training, self.base.gpu)), "")

    def _uneven(self, at: Reference, layout: Layout, training: Training) -> str:
        """The first declared dim that does not divide, or nothing: the same for every pipeline, recomputation and optimizer."""
        plain: Training | None = None
        for unit in self.units:
            seen = at.point if unit.routed else at.point._replace(ep=1, etp=1)
            key = unit.name, seen, at.style
            if key not in self.uneven:
                plain = plain or dataclasses.replace(training, **NO_RECOMPUTATION)
                wrong = refused(unit, self.base.model, layout, plain)
                self.uneven[key] = wrong[0].rule if wrong else ""
            if self.uneven[key]:
                return self.uneven[key]
        return ""

    def reference(self, shapes: Sequence[Shape], points: Sequence[Point], ask: Callable[[], None]) -> Reference | None:
        """Any legal layout: that of an earlier space, where this one has it. None where nothing tried is legal."""
        if self._legal is None or self._legal.shape not in shapes or self._legal.point not in points:
            self._legal = self._reference(shapes, points, ask)
        return self._legal

    def _reference(self, shapes: Sequence[Shape], points: Sequence[Point], ask: Callable[[], None]) -> Reference | None:
        pairs = list(product(shapes, points))
        Random(0).shuffle(pairs)
        pipelines = {id(shape): pipeline_sides(shape.of(self.base.model), shape.layout) for shape in shapes}
        ways = {(tp, cp): styles(self.space, tp=tp, cp=cp) for tp, cp in product((False, True), repeat=2)}
        for number, ((_, recompute), option) in enumerate(product(self.sets, self.options)):
            training = training_with(recompute, option)
            known: dict[object, bool] = {}
            for shape, point in pairs[: TRIES if number else 20 * TRIES]:
                for style in ways[point.tp > 1, point.cp > 1]:
                    ask()
                    at = Reference(shape, point, style, recompute, option)
                    key = pipelines[id(shape)], point, style
                    if key not in known:
                        job = dataclasses.replace(self.base, model=shape.of(self.base.model))
                        known[key] = hopeless(job, self.layout(at), training)
                    if not known[key] and not self.broken(at, training):
                        return at
        return None


def shapes(
    job: TrainingJob, space: Space, known: Cuts | None = None, ask: Ask = lambda: None
) -> Iterator[Shape | Violation]:
    """Every pipeline of the space that is legal, or the rule that it breaks."""
    work = tuple(works(job))
    known = {} if known is None else known
    for pp, vp in product(space.pipeline_model_parallel_size, space.virtual_pipeline_model_parallel_size):
        ask()
        if (pp, vp) not in known:
            known[pp, vp] = tuple(_shapes(job, space, pp, vp, work))
        yield from known[pp, vp]


def _shapes(job: TrainingJob, space: Space, pp: int, vp: int, work: Sequence[Work]) -> Iterator[Shape | Violation]:
    if vp > 1 and pp == 1:
        yield broken("chunks-need-pp", virtual_pipeline_model_parallel_size=vp)
        return
    if vp > 1 and (rule := _not_interleaved(job, pp, vp)):
        yield rule
        return
    for shape in _cut(job, space, pp, vp, work):
        model, t = shape.of(job.model), job.training
        violations = pipeline(model, shape.layout, overlap_p2p_comm=t.overlap_p2p_comm, mcore=t.mcore)
        yield next(violations, None) or next(placed(model, shape.layout), None) or shape


def _not_interleaved(job: TrainingJob, pp: int, vp: int) -> Violation | None:
    """The rule by which layers have no virtual stages, however they are divided."""
    alone, several = ([*of_kinds(job.model, _plain(job, pp, chunks), job.training)] for chunks in (1, vp))
    return next((one for one in several if one not in alone), None)


def _plain(job: TrainingJob, pp: int, vp: int) -> Layout:
    """An even split, every other degree 1."""
    return dataclasses.replace(
        job.layout,
        **EVEN,
        world_size=pp,
        tensor_model_parallel_size=1,
        context_parallel_size=1,
        expert_model_parallel_size=1,
        expert_tensor_parallel_size=1 if job.model.num_moe_experts else None,
        sequence_parallel=False,
        pipeline_model_parallel_size=pp,
        virtual_pipeline_model_parallel_size=vp if vp > 1 else None,
        num_layers_per_virtual_pipeline_stage=None,
        microbatch_group_size_per_vp_stage=None,
    )


def _cut(job: TrainingJob, space: Space, pp: int, vp: int, work: Sequence[Work]) -> Iterator[Shape]:
    """The pipelines of so many stages and chunks. A hybrid's borders are in its pattern."""
    model, plain = job.model, _plain(job, pp, vp)
    if not model.hybrid:
        yield from (Shape(layout, vp) for layout in _splits(job, space, pp, vp, work))
        return
    texts = []
    if pp > 1 and "layout" in space.split and not model.has_borders:
        texts = [
            text for text in dict.fromkeys(generated_layout(model, pp, vp, one) for one in work) if text is not None
        ]
    alone = dataclasses.replace(plain, virtual_pipeline_model_parallel_size=None)
    yield from (Shape(alone, vp, bordered(model, text)) for text in texts)
    if vp == 1 or not texts:
        yield Shape(plain, vp)


def _splits(job: TrainingJob, space: Space, pp: int, vp: int, work: Sequence[Work]) -> Iterator[Layout]:
    model, plain = job.model, _plain(job, pp, vp)
    if pp == 1:
        yield plain
        return
    splits = []
    if model.moe_n_hash_layers:  # whose experts are chosen beside the embedding: Megatron-LM wants a layout string
        text = generated_layout(model, pp, vp, work[0]) or even_layout(model.num_layers, pp * vp, model.mtp)
        yield dataclasses.replace(plain, virtual_pipeline_model_parallel_size=None, pipeline_model_parallel_layout=text)
        return
    divides = split_layers(model, plain) % (pp * vp) == 0
    if divides and "even" in space.split:
        splits.append(plain)
    counts = balanced_split(model.num_layers, pp, vp) if not divides and "uneven" in space.split else None
    if counts is not None:
        first, last = counts
        splits.append(
            dataclasses.replace(plain, num_layers_in_first_pipeline_stage=first, num_layers_in_last_pipeline_stage=last)
        )
    generated = "layout" in space.split and (not divides or model.mtp or max(together(model)) > 1)
    texts = [generated_layout(model, pp, vp, one) for one in work] if generated else []
    splits += [
        dataclasses.replace(plain, virtual_pipeline_model_parallel_size=None, pipeline_model_parallel_layout=text)
        for text in dict.fromkeys(texts)
        if text is not None
    ]
    yield from splits or [plain]  # whose rule says why there is none


DOMAINS = (1, 8)
"""NVLink domains that the experts are spread over: within one their dispatch is quick, over several it is not."""


def works(job: TrainingJob) -> Iterator[Work]:
    """The work of a job's units with its experts within one NVLink domain, and over several; of a dense model there is one."""
    experts = job.model.num_moe_experts
    many = {_ranks(experts, job.gpu.nvlink_domain * count) for count in DOMAINS} if experts else {1}
    for ranks in sorted(many):
        yield _seconds(job, ranks)


def _ranks(experts: int, most: int) -> int:
    """The most expert-parallel ranks that experts divide over, up to a number."""
    return max(ranks for ranks in range(1, min(experts, most) + 1) if experts % ranks == 0)


def _seconds(job: TrainingJob, ep: int) -> Work:
    model = job.model
    layout = Layout(
        **EVEN,
        world_size=ep,
        expert_model_parallel_size=ep,
        expert_tensor_parallel_size=1 if model.num_moe_experts else None,
    )
    training = dataclasses.replace(
        job.training, recompute_granularity=None, recompute_method=None, recompute_num_layers=None
    )
    declarer = Declarer(context_of(dataclasses.replace(job, layout=layout, training=training)))
    m = machine(job.gpu, None, job.env.network_gbs)
    each = {kind: unit_time(m, declarer, ("layer", kind, 0.0)).total for kind in dict.fromkeys(declarer.kinds)}
    mtp = unit_time(m, declarer, ("part", ("mtp", False))).total if model.mtp else 0.0
    loss = unit_time(m, declarer, ("part", ("output", False))).total
    embedding = unit_time(m, declarer, ("part", ("embedding", False))).total
    return Work([each[kind] for kind in declarer.kinds], mtp, loss, embedding)
