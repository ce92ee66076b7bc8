"""Variables of the environment that Megatron-LM asserts before it trains; none of them moves a byte.

Source: Megatron-LM 0.19.2 `megatron/training/arguments.py` (validate_args),
`megatron/core/models/common/language_module/language_module.py` (_set_attention_backend).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from ..job.hardware import Gpu
from ..job.layout import Layout
from ..job.training import Training
from ..wording import all_of

CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
OFFLOAD = "NVTE_CPU_OFFLOAD_V1"
VARIABLES = ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN")
EXPECTED: dict[str | None, tuple[str, str, str]] = {
    None: ("1", "1", "1"), "flash": ("1", "0", "0"), "cudnn": ("0", "1", "0"), "unfused": ("0", "0", "1"), "local": ("0", "0", "0"),
}  # fmt: skip
"""What Megatron-Core expects of these variables where they are set, by attention kernel; None is --attention-backend auto."""
CHOOSES = (0, 10)
"""Megatron-Core version from which --attention-backend chooses the kernel; before it these variables do."""
FREE = 10
"""CUDA capability from which the order of kernels needs no single connection (Blackwell)."""
WITHOUT_TE_LOSS = (0, 19)
"""Megatron-LM version whose arguments refuse TransformerEngine's fused loss ("disabled due to stability issues")."""
OFFLOADS_ANEW = (2, 10)
"""TransformerEngine version from which fine-grained offloading needs its first implementation asked for."""


def asserted(layout: Layout, t: Training, gpu: Gpu) -> dict[str, str]:
    """Variables without which the run stops, and their values."""
    found = {}
    alone = _shards(t) or t.overlap_moe_expert_parallel_comm
    if (layout.tp > 1 or layout.cp > 1) and not alone and gpu.capability[0] < FREE:
        found[CONNECTIONS] = "1"
    if t.fine_grained_activation_offloading and t.te >= OFFLOADS_ANEW:
        found[OFFLOAD] = "1"
    return found


def refuses_loss(t: Training) -> bool:
    """Whether Megatron-LM's arguments refuse the fused loss, which Megatron-Bridge's settings take."""
    return t.cross_entropy_loss_fusion and t.cross_entropy_fusion_impl == "te" and t.mcore >= WITHOUT_TE_LOSS


def contradictions(
    layout: Layout, t: Training, gpu: Gpu, env: Mapping[str, str], names: Collection[str]
) -> Iterator[str]:
    """What of a script's environment stops the run: `env` are its known values, `names` all that it sets."""
    for name, value in asserted(layout, t, gpu).items():
        why = "tp or cp above 1 before Blackwell" if name == CONNECTIONS else "fine-grained offloading"
        if name not in names:
            yield f"the script sets no {name}, and Megatron-LM stops without {name}={value} ({why})"
        elif env.get(name, value) != value:
            yield f"{name}={env[name]}: Megatron-LM stops, it asserts {value} ({why})"
    yield from _of_attention(t, env)
    if refuses_loss(t):
        yield "cross_entropy_fusion_impl=te: Megatron-LM 0.19 stops, it takes native alone"
    if _shards(t) and env.get(CONNECTIONS) == "1":
        yield f"{CONNECTIONS}=1: Megatron-LM stops, fully sharded data parallelism asserts another value, or none"


def _of_attention(t: Training, env: Mapping[str, str]) -> Iterator[str]:
    given = {name: env[name] for name in VARIABLES if name in env}
    if t.mcore < CHOOSES:
        if t.attention_kernel is None and all(given.get(name) == "0" for name in VARIABLES[:2]):
            yield f"{VARIABLES[0]}=0 and {VARIABLES[1]}=0 leave unfused attention, which --attention-kernel unfused counts"
        return
    expected = zip(VARIABLES, EXPECTED[t.attention_kernel], strict=True)
    wrong = [f"{name}={given[name]}" for name, value in expected if given.get(name, value) != value]
    if wrong:
        backend = {None: "auto", "cudnn": "fused"}.get(t.attention_kernel, t.attention_kernel)
        yield (
            f"{', '.join(wrong)}: Megatron-Core stops, --attention-backend {backend} expects otherwise; unset {all_of(VARIABLES)} and "
            "choose with --attention-backend"
        )


def _shards(t: Training) -> bool:
    return bool(t.use_megatron_fsdp or t.use_torch_fsdp2)
