"""What the models of one vendor have of their own, as the job knows it; their layers and rules stand in `modules/`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from ..dataclass import dataclass

Stream = Literal["plain", "fp32", "several", "gated", "bank"]
"""The residual stream: one in the compute dtype, one in fp32, several with hyper-connections or with gates, or one with a bank
of prefixes beside it."""
OTHER_LAYERS = "multi_latent_attention num_moe_experts experimental_attention_variant hybrid_layer_pattern"
"""Settings of layers that are not attention with query groups and a dense MLP."""


@dataclass(frozen=True)
class Vendor:
    """A setting that only models of this vendor have, and what follows from it."""

    setting: str
    """The setting; a model has it where it is neither its usual value nor zero."""
    excludes: str = ""
    """Settings that such a model cannot have."""
    fixed: str = ""
    """Settings of the whole model, which no layer changes."""
    stream: Stream = "plain"
    eager_norms: bool = False
    """Whether norms of query, key and value run op by op, with a power in the place of the root."""
    check: Callable[[Any], None] | None = None
    """Raises ConfigError for a model that has the setting and lacks what it needs, or has what needs the setting; every model is asked."""
    experts: str = ""
    """The kind of its routed experts."""
    layers: Callable[[Any, tuple[int, ...], tuple[bool, ...]], tuple[str, ...]] | None = None
    """Kinds of the layers of a model, from those with linear attention and those with routed experts."""
    of_layer: Callable[[str], Mapping[str, Any] | None] | None = None
    """What a layer of a name has of its own; None for a name that is not the vendor's."""
