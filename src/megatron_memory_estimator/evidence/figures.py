"""Memory figures in what frameworks and tools print: quantity, unit, rank or GPU, and iteration.

A format is a row: what a line looks like, and what its groups are. GB of frameworks are 2^30 bytes but for Megatron-Bridge's (10^9). What
Megatron has allocated `validation/logs.py` reads. Sources: verl `utils/profiler/performance.py`, slime and miles `utils/memory_utils.py`,
NeMo-RL, ms-swift `megatron/trainers`, torchtitan `components/metrics.py`, Automodel, Primus, ROLL, AReaL; torch's out-of-memory messages
(`c10/cuda/CUDACachingAllocator.cpp`) and its profiler's traces; nvidia-smi, NVIDIA DCGM exporter, rocm-smi; NCCL_DEBUG=INFO.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from ..errors import ConfigError
from ..job.hardware import GIB, MIB
from ..validation.logs import MOST_BYTES
from . import Kind

UNITS = {"bytes": 1, "KiB": 2**10, "MiB": MIB, "GiB": GIB, "TiB": 2**40}
LONGEST_LINE = 20_000
"""Characters of a line that are read."""
Quantity = Literal["allocated", "reserved", "device", "host", "NCCL"]
KIND_OF: dict[Quantity, Kind] = {"allocated": "allocated", "reserved": "reserved", "device": "nvidia-smi"}
"""Quantities that an estimate has, by their names there."""
N = r"(\d{1,15}(?:\.\d{1,30})?)"


class Figure(NamedTuple):
    """A figure of a log: bytes, whose, and when. `peak`: the most so far; else of the moment."""

    source: str
    quantity: Quantity
    peak: bool
    nbytes: int
    of: str
    """The rank or GPU, or nothing where the line does not say it."""
    iteration: int | None
    line: int


Group = tuple[Quantity, bool, int]
"""A quantity, whether it is a peak, and the bytes of its unit."""


class Row(NamedTuple):
    """A format: what its lines look like, and what each of its groups is."""

    source: str
    pattern: re.Pattern[str]
    groups: tuple[Group, ...]
    of: re.Pattern[str] | None = None
    iteration: re.Pattern[str] | None = None
    whose: str = ""
    """Whose it is where the line does not say it."""


def _row(source: str, pattern: str, *groups: Group, of: str = "", iteration: str = "", whose: str = "") -> Row:
    return Row(
        source,
        re.compile(pattern),
        groups,
        re.compile(of) if of else None,
        re.compile(iteration) if iteration else None,
        whose,
    )


LAST = "last"
"""The rank of lines and tags of Megatron's last rank."""
NOW_ALLOCATED: Group = ("allocated", False, GIB)
NOW_RESERVED: Group = ("reserved", False, GIB)
NOW_DEVICE: Group = ("device", False, GIB)
RANK = r"\[?[Rr]ank[ -]?(\d{1,7})\]?"
REPORT = r"\[Rank (\d{1,7})\]"
AFTER = r"\(after (\d{1,12}) iterations\)"
AFTER_MB, AFTER_GB = r"\(after \d{1,12} iterations\) memory \(MB\)", r"\(after \d{1,12} iterations\) memory \(GB\)"
ROWS: tuple[Row, ...] = (
    _row("Megatron-LM", AFTER_MB + rf".*\| max reserved: {N}", ("reserved", True, MIB), of=REPORT, iteration=AFTER),
    _row("Megatron-LM", AFTER_MB + rf".*\| total device memory used: {N}", ("device", False, MIB), of=REPORT, iteration=AFTER),
    _row("Megatron-Bridge", AFTER_GB + rf".*\| mem-max-reserved-gigabytes: {N}", ("reserved", True, 10**9), of=REPORT, iteration=AFTER),
    _row("verl, AReaL", rf"memory allocated \(GB\): {N}, memory reserved \(GB\): {N}, device memory used/total \(GB\): {N}/",
         NOW_ALLOCATED, NOW_RESERVED, NOW_DEVICE, of=RANK),
    _row("verl", rf"perf/max_memory_allocated_gb:{N}", ("allocated", True, GIB), iteration=r"step:(\d{1,12})"),
    _row("verl", rf"perf/max_memory_reserved_gb:{N}", ("reserved", True, GIB), iteration=r"step:(\d{1,12})"),
    _row("verl", rf"perf/cpu_memory_used_gb:{N}", ("host", False, GIB), iteration=r"step:(\d{1,12})"),
    _row("slime, miles", rf"Memory-Usage .*'used_GB': {N}, 'allocated_GB': {N}, 'reserved_GB': {N}", NOW_DEVICE, NOW_ALLOCATED,
         NOW_RESERVED, of=RANK),
    _row("slime", rf"Memory-Usage .*'host_used_GB': {N}", ("host", False, GIB), of=RANK),
    _row("NeMo-RL", rf"GPU Memory .*: {N}GB allocated, {N}GB reserved", NOW_ALLOCATED, NOW_RESERVED, of=RANK),
    _row("ms-swift", rf'"memory\(GiB\)": {N}', ("reserved", True, GIB), iteration=r'"iteration": "(\d{1,12})/'),
    _row("torchtitan", rf"memory: {N}GiB\(", ("reserved", True, GIB), iteration=r"step: +(\d{1,12})"),
    _row("Automodel", rf"\| mem {N} GiB \|", ("allocated", True, GIB), iteration=r"\| step (\d{1,12})"),
    _row("Primus", rf"(?:hip|rocm) mem usage/free/total/usage_ratio: {N}GB/", NOW_DEVICE, iteration=r"iteration +(\d{1,12})/",
         whose=LAST),
    _row("Primus", rf"rocm max mem usage/usage_ratio: {N}GB/", ("device", True, GIB), of=r"rank-(\d{1,7}) rocm max",
         iteration=r"iteration +(\d{1,12})/"),
    _row("ROLL", rf"memory max reserved \(GB\): {N}", ("reserved", True, GIB), of=RANK),
    _row("ROLL", rf"rss \(GB\): {N} memory device used \(GB\): {N}", ("host", False, GIB), NOW_DEVICE, of=RANK),
    _row("DCGM", rf"^DCGM_FI_DEV_FB_USED\{{.*\}} {N}", ("device", False, MIB), of=r'gpu="(\d{1,4})"'),
)  # fmt: skip
"""Formats by line, the names of their frameworks first."""
TAGS: tuple[tuple[str, Quantity, bool, int, str], ...] = (
    ("mem-max-allocated-bytes", "allocated", True, 1, LAST),
    ("mem-allocated-bytes", "allocated", False, 1, LAST),
    ("mem-reserved-bytes", "reserved", False, 1, LAST),
    ("memory/mem-max-allocated-gigabytes", "allocated", True, 10**9, ""),
    ("memory/mem-max-reserved-gigabytes", "reserved", True, 10**9, ""),
)
"""TensorBoard's and W&B's: Megatron-LM `training/utils/common_utils.py`, Megatron-Bridge `training/utils/train_utils.py` (the most of
the pipeline group)."""
SYSTEM = re.compile(r"system\.gpu\.(\d{1,4})\.memoryAllocatedBytes")
PAIR = re.compile(rf'"([\w./-]{{1,100}})": {N}')
STEP = re.compile(r'"_?step": (\d{1,12})')
TOOLS = frozenset({"nvidia-smi", "DCGM", "rocm-smi", "W&B system", "torch profiler"})
"""Sources that count GPUs of a host, not ranks."""
HOST = re.compile(r'Hostname="([\w.-]{1,64})"')
COLOURS = re.compile(r"\x1b?\[[0-9;]{1,20}m")


class OutOfMemoryMessage(NamedTuple):
    """A message that memory ran out, in bytes; 0 where it does not say it."""

    asked: int
    capacity: int
    free: int
    allocated: int
    unallocated: int
    process: int
    others: int
    private: int
    line: int
    rank: str

    @property
    def outside(self) -> int:
        """What the process has outside torch: context, NCCL, buffers; 0 where the message does not say it."""
        return max(self.process - self.allocated - self.unallocated, 0) if self.process else 0


ASKED = re.compile(r"out of memory\. Tried to allocate (\S+) (\w+)")
SIZE = r"(\d{1,12}(?:\.\d{1,6})?) (bytes|KiB|MiB|GiB|TiB)"
OBSERVED = re.compile(
    r"Observe OOM, .*_rank(\d{1,7})_.*\(device=\d+ alloc=(\d{1,15}) device_alloc=(\d{1,15}) device_free=(\d{1,15});"
)
"""slime's and miles's observer; what is allocated and reserved then is a line of its own."""
WHEN_OOM = re.compile(rf"\[Rank (\d{{1,7}})\] Memory-Usage when oom: .*'allocated_GB': {N}, 'reserved_GB': {N}")
FIELDS = {
    "capacity": rf"(?:total capac\w+ of {SIZE}|{SIZE} total capacity)", "free": rf"(?:of which {SIZE} is free|{SIZE} free)",
    "allocated": rf"(?:{SIZE} is allocated by PyTorch|{SIZE} already allocated)", "unallocated": rf"{SIZE} is reserved by PyTorch but",
    "process": rf"this process has {SIZE} memory in use", "private": rf"with {SIZE} allocated in private pools",
    "reserved": rf"{SIZE} reserved in total by PyTorch",
}  # fmt: skip
OTHERS = re.compile(rf"Process \d+ has {SIZE} memory in use")


def figures(text: str) -> list[Figure]:
    """Every figure of a log or of a tool's table, in its order, but impossible ones. Raises ConfigError for a table of nvidia-smi
    without its heads, and for one that is no CSV."""
    try:
        found = list(_table(text.lstrip())) or list(_profile(text))
    except csv.Error as error:
        raise ConfigError(f"the table of figures is not CSV: {error}") from None
    return [one for one in found or (*_lines(text), *_nccl(text)) if one.nbytes <= MOST_BYTES]


def _lines(text: str) -> Iterator[Figure]:
    """The figures of a log, line by line."""
    for number, line in enumerate(text.split("\n"), 1):
        plain = COLOURS.sub("", line[:LONGEST_LINE])
        step = STEP.search(plain)
        for name, word in PAIR.findall(plain):
            yield from _tagged(name, word, int(step[1]) if step else None, number)
        for row in ROWS:
            if (match := row.pattern.search(plain)) is not None:
                yield from _matched(row, match, plain, number)


def _matched(row: Row, match: re.Match[str], line: str, number: int) -> Iterator[Figure]:
    """The figures of a line of a format."""
    of = row.of.search(line) if row.of is not None else None
    host = HOST.search(line)
    whose = (f"{host[1]}/" if host and of else "") + (of[1] if of else row.whose)
    iteration = row.iteration.search(line) if row.iteration is not None else None
    when = int(iteration[1]) if iteration else None
    for word, (quantity, peak, unit) in zip(match.groups(), row.groups, strict=True):
        yield Figure(row.source, quantity, peak, int(float(word) * unit), whose, when, number)


def _tagged(name: str, word: str, step: int | None, line: int) -> Iterator[Figure]:
    """The figure of a tag of TensorBoard or W&B."""
    for tag, quantity, peak, unit, of in TAGS:
        if name == tag:
            yield Figure("TensorBoard, W&B", quantity, peak, int(float(word) * unit), of, step, line)
    if gpu := SYSTEM.fullmatch(name):
        yield Figure("W&B system", "device", False, int(float(word)), gpu[1], step, line)


def _table(text: str) -> Iterator[Figure]:
    """The figures of CSV of nvidia-smi or rocm-smi, or of an export of W&B."""
    first = text.split("\n", 1)[0]
    if "memory.used" in first:
        yield from _columns(text, "nvidia-smi", "memory.used", "index", MIB)
    elif "VRAM Total Used Memory (B)" in first:
        yield from _columns(text, "rocm-smi", "VRAM Total Used Memory (B)", "device", 1)
    elif first.startswith(('"Step"', "Step,")):
        heads, *rows = csv.reader(io.StringIO(text))
        for number, row in enumerate(rows, 2):
            for head, word in zip(heads[1:], row[1:], strict=False):
                if re.fullmatch(N, word):
                    step = int(row[0]) if re.fullmatch(r"\d{1,12}", row[0]) else None
                    yield from _tagged(head.rpartition(" - ")[2], word, step, number)
    elif re.fullmatch(r"\d{1,3}, *\d{3,7}(, *\d{3,7})+", first.strip()):
        raise ConfigError(
            "it looks like a table of nvidia-smi without heads, whose columns are the caller's: record it with --format=csv"
        )


COUNTERS: dict[str, Quantity] = {"Total Allocated": "allocated", "Total Reserved": "reserved"}
"""torch's counters in an event of its profiler."""
TRACED = re.compile(r'"traceEvents"\s*:')


def _profile(text: str) -> Iterator[Figure]:
    """The peaks of a window in a trace of torch's profiler: torch's own counters at each allocation of a GPU."""
    if not text.lstrip().startswith("{") or not TRACED.search(text):
        return
    try:
        events = json.loads(text)["traceEvents"]
    except (ValueError, KeyError, RecursionError) as error:
        raise ConfigError(f"the trace of torch's profiler is not JSON: {error}") from None
    for event in events if isinstance(events, list) else ():
        said = event.get("args") if isinstance(event, dict) and event.get("name") == "[memory]" else None
        if not isinstance(said, dict) or said.get("Device Type") != 1:
            continue
        for key, quantity in COUNTERS.items():
            size = said.get(key)
            if isinstance(size, int) and size > 0:
                yield Figure("torch profiler", quantity, True, size, str(said.get("Device Id", "")), None, 0)


NCCL_ALLOCATED = re.compile(r"NCCL INFO \S+:\d+ Cuda Alloc Size (\d{1,15}) pointer")
NCCL_SHARED = re.compile(r"NCCL INFO NVLS .*nvlsTotalSize (\d{1,15})")
NCCL_RANK = re.compile(r"NCCL INFO ncclCommInitRank\w* comm \w+ rank (\d{1,7}) nranks (\d{1,7}) .*Init COMPLETE")


def _nccl(text: str) -> Iterator[Figure]:
    """What NCCL says that it allocated, in all; without NCCL_DEBUG_SUBSYS=ALLOC that is NVLS alone, a lower bound. The rank is that of
    the largest communicator."""
    alone = sum(map(int, NCCL_ALLOCATED.findall(text)))
    shared = sum(map(int, NCCL_SHARED.findall(text)))
    if alone or shared:
        groups = [(int(count), rank) for rank, count in NCCL_RANK.findall(text)]
        yield Figure("NCCL", "NCCL", bool(alone), alone + shared, max(groups)[1] if groups else "", None, 0)


def _columns(text: str, source: str, used: str, of: str, unit: int) -> Iterator[Figure]:
    rows = csv.reader(io.StringIO(text), skipinitialspace=True)
    heads = [head.split(" [")[0].strip() if source == "nvidia-smi" else head.strip() for head in next(rows)]
    if used not in heads:
        return
    at, whose = heads.index(used), heads.index(of) if of in heads else None
    for number, row in enumerate(rows, 2):
        word = row[at].split()[0] if len(row) > at and row[at].split() else ""
        if re.fullmatch(N, word):
            name = row[whose].removeprefix("card") if whose is not None else ""
            yield Figure(source, "device", False, int(float(word) * unit), name, None, number)


def out_of_memory(text: str) -> list[OutOfMemoryMessage]:
    """The out-of-memory messages of torch and of slime's observer in a log."""
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        if observed := OBSERVED.search(line):
            rank, asked_bytes, capacity, free = observed.groups()
            found.append(OutOfMemoryMessage(int(asked_bytes), int(capacity), int(free), 0, 0, 0, 0, 0, number, rank))
        if (when := WHEN_OOM.search(line)) and found and found[-1].rank == when[1]:
            allocated, reserved = (int(float(word) * GIB) for word in when.groups()[1:])
            found[-1] = found[-1]._replace(allocated=allocated, unallocated=max(reserved - allocated, 0))
        asked = ASKED.search(line)
        if asked is None or asked[2] not in UNITS or not re.fullmatch(N, asked[1]):
            continue
        values = {name: _field(line, pattern) for name, pattern in FIELDS.items()}
        in_total = values.pop("reserved")
        if in_total and not values["unallocated"]:
            values["unallocated"] = max(in_total - values["allocated"], 0)
        others = sum(int(float(size) * UNITS[unit]) for size, unit in OTHERS.findall(line))
        own = re.search(r"\[rank(\d{1,7})\]", line)
        found.append(
            OutOfMemoryMessage(
                int(float(asked[1]) * UNITS[asked[2]]),
                **values,
                others=others,
                line=number,
                rank=own[1] if own else "",
            )
        )
    return found


def _field(line: str, pattern: str) -> int:
    match = re.search(pattern, line)
    if match is None:
        return 0
    size, unit = [word for word in match.groups() if word is not None][:2]
    return int(float(size) * UNITS[unit])


def largest(found: list[Figure]) -> list[Figure]:
    """Of each quantity and each rank or GPU the most: peaks and what is of the moment apart."""
    most: dict[tuple[str, bool, str, str], Figure] = {}
    for one in found:
        key = one.quantity, one.peak, one.of, one.source
        if key not in most or one.nbytes > most[key].nbytes:
            most[key] = one
    return list(most.values())
