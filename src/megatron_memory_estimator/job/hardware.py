"""The machine: GPUs by name, and the environment settings that change how much memory is taken.

Memory figures are what `nvidia-smi` and torch report; the public source stands with each entry.

Which library versions a run may have where nothing gives them.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Literal, NamedTuple

from ..dataclass import dataclass
from ..errors import ConfigError
from .choices import DOORS, INSTALLED, PHASES, version
from .settings import nearest, setting

MIB = 2**20
GIB = 2**30


DEFAULT_GPU = "H100-80GB"
Family = Literal["ampere", "ada", "hopper", "blackwell"]
Host = Literal["x86", "grace"]
HOST_GPUS: dict[Host, int] = {"x86": 8, "grace": 4}
"""GPUs that share one host: an HGX or DGX server, a GB200 or GB300 tray."""


class Speed(NamedTuple):
    """Dense peaks in TFLOP/s (0 where the GPU has none), and bandwidths in GB/s: HBM, NVLink one way, network one way.

    Sources: NVIDIA data sheets as quoted by ai-dynamo/aiconfigurator `systems/*.yaml` and cli99/llm-analysis `gpu_configs`; B200
    memory: pytorch/ao PR 4002; H800 (NVLink 400 GB/s in both directions together, 50 GB/s InfiniBand): arXiv 2412.19437 and
    2505.09343 (DeepSeek-V3), compute and memory as the H100's.
    """

    bf16: float
    fp8: float
    fp4: float
    hbm: float
    nvlink: float
    network: float


@dataclass(frozen=True)
class Gpu:
    """One GPU type. `memory_bytes` is the capacity that torch reports: what an out-of-memory message calls total.

    `alike` names the GPU whose measured kernel rates are this one's too (same chip); collectives are scaled by NVLink.
    """

    name: str
    """Its name in the catalogue."""
    memory_bytes: int
    """Bytes that torch reports as its capacity."""
    capability: tuple[int, int]
    """Its compute capability."""
    nvlink_domain: int
    """GPUs that NVLink connects."""
    num_sms: int
    """Streaming multiprocessors."""
    source: str
    """Where its memory is from."""
    aliases: tuple[str, ...]
    """Other names."""
    family: Family
    """Its architecture."""
    speed: Speed
    """Its peaks and bandwidths."""
    host: Host = "x86"
    """The CPU of its hosts."""
    alike: str = ""
    """The GPU whose measured kernel rates are its own too."""
    node: int = 0
    """GPUs of a host, where that is given; 0: as usual."""
    chip_unknown: bool = False
    """Nothing but its memory is known: kernels and rates are those of the GPU that it is made from."""
    note: str = ""
    """What is to know beside that."""

    @property
    def gpus_per_node(self) -> int:
        """GPUs that share one host: as given, else as usual for the host."""
        return self.node or HOST_GPUS[self.host]

    @property
    def hopper_or_later(self) -> bool:
        """Compute capability 9.0 and above."""
        return self.capability >= (9, 0)

    @property
    def two_way_fp8(self) -> bool:
        """Low-precision GEMMs that read operands in both orientations (TransformerEngine `pytorch/utils.py`)."""
        return (10, 0) <= self.capability < (12, 0) or self.capability >= (13, 0)


LARGEST_GIB = 10**6


def _gib(value: float) -> int:
    return int(value * GIB)


GPUS: tuple[Gpu, ...] = (
    Gpu("A100-40GB", _gib(39.4), (8, 0), 8, 108, "nvidia-smi 40960 MiB (modal-labs/modal-client PR 2797); torch figure "
        "from general knowledge", ("A100-SXM-40GB", "A100 40GB"), "ampere", Speed(312, 0, 0, 1555, 300, 25), alike="A100-80GB"),
    Gpu("A100-80GB", 81050 * MIB, (8, 0), 8, 108, "torch 81050 MiB (meta-pytorch/torchrec PR 3580)",
        ("A100", "A100-SXM-80GB", "A100 80GB", "DGX A100"), "ampere", Speed(312, 0, 0, 2039, 300, 25)),
    Gpu("H100-80GB", _gib(79.11), (9, 0), 8, 132, "torch 79.11 GiB (NVIDIA-NeMo/Automodel PR 2673)",
        ("H100", "H100-SXM", "H100-SXM-80GB", "H100 80GB", "DGX H100"), "hopper", Speed(989, 1979, 0, 3350, 450, 50)),
    Gpu("H800-80GB", _gib(79.11), (9, 0), 8, 132, "80 GB HBM3 as the H100 (public data sheets; arXiv 2412.19437); torch as the H100's",
        ("H800", "H800-SXM", "H800 80GB"), "hopper", Speed(989, 1979, 0, 3350, 200, 50), alike="H100-80GB"),
    Gpu("H20-96GB", _gib(95.1), (9, 0), 8, 78, "nvidia-smi 97871 MiB (general knowledge); torch estimated", ("H20",),
        "hopper", Speed(148, 296, 0, 4000, 450, 50)),
    Gpu("H200-141GB", _gib(139.8), (9, 0), 8, 132, "nvidia-smi 143771 MiB (general knowledge); torch estimated",
        ("H200", "H200-SXM"), "hopper", Speed(989, 1979, 0, 4800, 450, 50)),
    Gpu("B200-180GB", _gib(178.35), (10, 0), 8, 148, "torch 178.35 GiB (pytorch/ao PR 4002)", ("B200", "B200-SXM"),
        "blackwell", Speed(2250, 4500, 9000, 7700, 900, 50)),
    Gpu("B300-288GB", _gib(267.7), (10, 3), 8, 148, "nvidia-smi 275040 MiB (ai-dynamo/aiconfigurator); torch estimated",
        ("B300", "B300-SXM"), "blackwell", Speed(2250, 4500, 14000, 7750, 900, 100)),
    Gpu("GB200-186GB", _gib(184.3), (10, 0), 72, 152, "torch 184.3 GiB (NVIDIA-NeMo/Megatron-Bridge qwen3.8-27b card)",
        ("GB200",), "blackwell", Speed(2500, 5000, 10000, 8000, 900, 50), "grace"),
    Gpu("GB300-288GB", _gib(276.6), (10, 3), 72, 160, "nvidia-smi 284208 MiB (ai-dynamo/aiconfigurator); torch estimated",
        ("GB300",), "blackwell", Speed(2500, 5000, 15000, 8000, 900, 100), "grace"),
    Gpu("H100-NVL-94GB", _gib(93.1), (9, 0), 2, 132, "torch 93.09 to 93.10 GiB (out-of-memory messages of public issues)",
        ("H100-NVL", "H100 NVL"), "hopper", Speed(835, 1671, 0, 3938, 300, 50), alike="H100-80GB"),
    Gpu("H100-PCIE-80GB", _gib(79.1), (9, 0), 2, 114, "general knowledge", ("H100-PCIe", "H100 PCIe"), "hopper",
        Speed(756, 1513, 0, 2039, 300, 50), alike="H100-80GB"),
    Gpu("A800-80GB", _gib(79.15), (8, 0), 8, 108, "torch 79.15 to 79.35 GiB (out-of-memory messages of public issues)",
        ("A800", "A800-SXM", "A800-SXM-80GB"), "ampere", Speed(312, 0, 0, 2039, 200, 25), alike="A100-80GB"),
    Gpu("L20-48GB", _gib(44.4), (8, 9), 1, 92, "general knowledge; memory derived from the L40S's", ("L20",),
        "ada", Speed(119.5, 239, 0, 864, 32, 25)),
    Gpu("RTX-PRO-6000-96GB", _gib(94.5), (12, 0), 1, 188, "torch 94.5 to 95.1 GiB by edition (out-of-memory messages of public issues)",
        ("RTX-PRO-6000", "RTX PRO 6000", "RTX-PRO-6000-BLACKWELL"), "blackwell", Speed(504, 1008, 2015, 1792, 64, 50)),
    Gpu("L40S-48GB", _gib(44.4), (8, 9), 1, 142, "nvidia-smi 46068 MiB (modal-labs/modal-client PR 2797); torch estimated",
        ("L40S",), "ada", Speed(362, 733, 0, 864, 32, 50)),
    Gpu("GH200-96GB", _gib(94.5), (9, 0), 1, 132, "general knowledge", ("GH200", "GH200-480GB"), "hopper",
        Speed(989, 1979, 0, 4000, 450, 50), "grace", alike="H100-80GB", node=1),
    Gpu("GH200-144GB", 144 * 10**9, (9, 0), 1, 132, "144 GB as sold; what torch reports is not known", ("GH200-HBM3E",), "hopper",
        Speed(989, 1979, 0, 4900, 450, 50), "grace", alike="H100-80GB", node=1),
    Gpu("RTX-4090-24GB", _gib(23.6), (8, 9), 1, 128, "general knowledge", ("RTX-4090", "RTX4090", "4090"),
        "ada", Speed(165, 330, 0, 1008, 32, 25)),
    Gpu("RTX-A6000-48GB", _gib(47.5), (8, 6), 2, 84, "general knowledge", ("RTX-A6000", "A6000"),
        "ampere", Speed(155, 0, 0, 768, 56, 25)),
)  # fmt: skip
"""GPUs whose kernels and rates are known: every run is judged on each of them."""


def _memory_only(name: str, memory_bytes: int, source: str, aliases: tuple[str, ...], note: str) -> Gpu:
    """A GPU that is an H100 but for its memory, because no more of it is known."""
    usual = next(gpu for gpu in GPUS if gpu.name == DEFAULT_GPU)
    return replace(
        usual, name=name, memory_bytes=memory_bytes, source=source, aliases=aliases, chip_unknown=True, note=note
    )


ROCM = "the memory of ROCm's context, libraries and RCCL is taken to be that of CUDA and NCCL"
MEMORY_ONLY: tuple[Gpu, ...] = (
    _memory_only("MI300X-192GB", _gib(191.69), "torch 191.69 to 191.98 GiB (out-of-memory messages of public issues)",
        ("MI300X",), ROCM),
    _memory_only("MI325X-256GB", _gib(255.69), "torch 255.69 or 255.98 GiB (out-of-memory messages of public issues)",
        ("MI325X",), ROCM),
    _memory_only("MI355X-288GB", _gib(287.98), "torch 287.98 GiB (out-of-memory messages of public issues)", ("MI355X",), ROCM),
    _memory_only("GB10-128GB", _gib(119.6), "torch 119.6 to 119.7 GiB (out-of-memory messages of public issues)",
        ("GB10", "DGX-SPARK", "DGX Spark"), "the host's processes take of the same memory"),
    _memory_only("ASCEND-910B-64GB", _gib(60.97), "60.97 GiB (out-of-memory messages of public issues)",
        ("910B", "ASCEND-910B", "Ascend 910B"), "it is no CUDA device, and what MindSpeed changes of Megatron is not modelled"),
    _memory_only("VR200-288GB", 288 * 10**9, "288 GB as announced; what torch reports is not known", ("VR200", "RUBIN"),
        "it is announced, and no figure of it is verified"),
)  # fmt: skip
"""GPUs of which nothing but the memory is known."""
CATALOGUE = (*GPUS, *MEMORY_ONLY)


SIZED = re.compile(r"(?:(?P<name>[\w .+-]+)=)?(?P<size>\d{1,5}(?:\.\d+)?) ?gi?b", re.IGNORECASE | re.ASCII)
"""A GPU of so much memory: 288GB, or NAME=288GB."""


def find_gpu(name: str) -> Gpu:
    """The GPU of a name or alias, in any case, or of so many GiB; an unknown one is refused with the nearest match.

    `NAME=288GB` is a GPU of the catalogue with other memory; another name, or none, is one of which nothing but the memory is known: its
    kernels are taken to be those of an H100.
    """
    sized = SIZED.fullmatch(name.strip())
    if sized is None:
        return _named(name)
    memory = _gib(float(sized["size"]))
    if not memory:
        raise ConfigError(f"gpu={name} has no memory; give it as NAME=288GB (GB is read as GiB)")
    given = (sized["name"] or "").strip()
    known = _of_catalogue(given)
    called = given or f"{sized['size']}GB-GPU"
    if known is not None:
        family = known.name.rsplit("-", 1)[0]
        named = _of_catalogue(f"{family}-{sized['size']}GB")
        if named is not None:  # its nominal size: torch reports less
            return named
        return replace(
            known,
            name=f"{family}-{sized['size']}GiB",
            memory_bytes=memory,
            aliases=(),
            alike=known.alike or known.name,
        )
    usual = _named(DEFAULT_GPU)
    return replace(usual, name=called, memory_bytes=memory, source="memory as given", aliases=(), chip_unknown=True)


def _named(name: str) -> Gpu:
    found = _of_catalogue(name)
    if found is not None:
        return found
    known = [word for gpu in CATALOGUE for word in (gpu.name, *gpu.aliases)]
    raise ConfigError(
        f'unknown GPU "{name}"; `megatron-memory gpus` lists the known ones; give another as NAME=80GB, with its memory.'
        f"{nearest(name.upper(), known)}"
    )


def _of_catalogue(name: str) -> Gpu | None:
    wanted = name.lower().replace("_", "-").removeprefix("nvidia-")
    return next(
        (gpu for gpu in CATALOGUE if wanted in (gpu.name.lower(), *(alias.lower() for alias in gpu.aliases))), None
    )


POSITIVE = (
    "gpus_per_node", "nvlink_domain", "network_gbs", "train_tokens", "gpu_hour_dollars", "gpu_mtbf_hours", "restart_minutes", "storage_gbs",
    "save_interval",
)  # fmt: skip
"""Settings that are more than 0."""


@dataclass(frozen=True)
class Environment:
    """Settings of the process environment and ranges for what no source fixes.

    Each `*_low` / `*_high` pair overrides one term of the device-memory range, in GiB.
    """

    cublas_workspace_config: str | None = setting(None, "value of CUBLAS_WORKSPACE_CONFIG")
    expandable_segments: bool = setting(False, "PYTORCH_CUDA_ALLOC_CONF has expandable_segments:True")
    nccl_nvls: bool = setting(False, "NVLS is on (NCCL_NVLS_ENABLE)")
    context_gib: float | None = setting(None, "CUDA context, GiB")
    libraries_gib: float | None = setting(None, "CUDA libraries and kernels, GiB")
    nccl_gib: float | None = setting(None, "NCCL communicators, GiB")
    fragmentation: float | None = setting(None, "reserved memory over allocated memory, as a fraction of the peak")
    gpus_per_node: int | None = setting(None, "GPUs of one host; default: by GPU")
    nvlink_domain: int | None = setting(None, "GPUs that NVLink joins; default: by GPU")
    network_gbs: float | None = setting(None, "network of one GPU, one way, GB/s; default: by GPU")
    max_memory: float | None = setting(None, "memory that a run may take of a GPU, GiB; default: all of it")
    head_room: str | None = setting(None, "memory of a GPU to leave free: GiB such as 4, or a share such as 5%")

    container: str | None = setting(
        None, "container image, whose name says library versions: nvcr.io/nvidia/nemo:25.11"
    )
    door: str | None = setting(
        None,
        "what builds a model that is given by name, and decides its fusions and its loss; default: megatron-lm",
        choices=tuple(DOORS),
    )
    train_tokens: float | None = setting(None, "tokens of the whole run, such as 15T: plan says its days")
    gpu_hour_dollars: float | None = setting(None, "dollars of a GPU for an hour: plan says tokens for a dollar")
    gpu_mtbf_hours: float | None = setting(
        None, "hours between failures of one GPU on average: plan says goodput; with restart_minutes and storage_gbs"
    )
    restart_minutes: float | None = setting(None, "minutes from a failure to the next step")
    storage_gbs: float | None = setting(None, "GB/s at which all ranks together write a checkpoint")
    save_interval: int | None = setting(None, "steps between checkpoints; default: as many as cost least")
    phases: tuple[str, ...] = setting(PHASES, "phases to judge: training only, or all", kind="list", choices=PHASES)

    def __post_init__(self) -> None:
        if "training" not in self.phases:
            raise ConfigError(
                f"phases={','.join(self.phases)} must include training, such as training or training,load"
            )
        for name in ("context_gib", "libraries_gib", "nccl_gib", "fragmentation"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ConfigError(f"{name}={value} must not be negative")
        for name in POSITIVE:
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"{name}={value} must be more than 0")

    def installed(self, gpu: Gpu) -> Gpu:
        """A GPU as it is installed: in hosts and NVLink domains of these sizes, with the memory that the run may take of it."""
        return replace(
            gpu,
            node=self.gpus_per_node or gpu.node,
            nvlink_domain=self.nvlink_domain or gpu.nvlink_domain,
            memory_bytes=self._allowed(gpu.memory_bytes),
        )

    def _allowed(self, memory: int) -> int:
        """Bytes of a GPU that the run may take. Raises ConfigError."""
        if self.max_memory is not None:
            if not 0 < self.max_memory < LARGEST_GIB:
                raise ConfigError(f"max_memory={self.max_memory:g} must be more than 0 GiB, and a number")
            memory = _gib(self.max_memory)
        if self.head_room is None:
            return memory
        text = self.head_room.removesuffix("%")
        try:
            size = float(text)
        except ValueError:
            raise ConfigError(f"head_room={self.head_room} must be GiB such as 4, or a percentage such as 5%") from None
        if not 0 <= size < LARGEST_GIB:
            raise ConfigError(f"head_room={self.head_room} must not be negative, and a number")
        room = int(memory * size / 100) if text != self.head_room else _gib(size)
        if room >= memory:
            raise ConfigError(f"head_room={self.head_room} leaves nothing of {memory / GIB:.2f} GiB")
        return memory - room


Version = tuple[int, int]
TE, CORE = "transformer_engine_version", "megatron_core_version"
LIBRARIES = {TE: "TransformerEngine", CORE: "Megatron-Core"}
"""Settings of versions, and the library of each."""


class OpenVersion(NamedTuple):
    """A version that nothing gives: the setting, the lowest one that the run may have, and the highest, which is taken."""

    setting: str
    low: Version
    high: Version


OLDEST = {TE: (2, 0), CORE: (0, 13)}
"""The oldest versions that a run is thought to have where nothing says otherwise: those of a year and a half before the newest."""


def before(since: Version) -> Version:
    """The last version before one."""
    major, minor = since
    return (major, minor - 1) if minor else (major - 1, 99)


def any_version(setting: str) -> OpenVersion:
    """A version of which nothing is known."""
    return OpenVersion(setting, OLDEST[setting], version(setting, INSTALLED[setting]))


def text_of(found: Version) -> str:
    """A version in words."""
    return f"{found[0]}.{found[1]}"
