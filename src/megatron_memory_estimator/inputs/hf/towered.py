"""Language models that differ from their family's where they stand behind a tower."""

from __future__ import annotations

from .converted import Converted
from .exaone import exaone4
from .fields import Fields
from .moe import glm4_moe


def glm4v_moe(f: Fields) -> Converted:
    """GLM-4.5V: GLM-4.5's decoder without MTP, whatever the file says.

    Source: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/glm_vl/glm_45v_bridge.py`.
    """
    found = glm4_moe(f)
    return found._replace(settings={**found.settings, "mtp_num_layers": 0})


def exaone45(f: Fields) -> Converted:
    """EXAONE 4.5: EXAONE 4's layers, of which those with full attention have no RoPE, and MTP of such layers.

    Source: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/exaone/exaone45/exaone45_bridge.py`.
    """
    f.raw("sliding_window", "sliding_window_pattern", "layer_types", "mtp_loss_scaling_factor", "mtp_share_layers")
    settings: dict[str, object] = {**exaone4(f).settings}
    if f.switch("mtp_share_layers", default=False):
        settings["mtp_use_repeated_layer"] = True
    return Converted(
        settings,
        refusal="norms after attention and after the MLP, layers without RoPE and MTP layers of that kind (EXAONE 4.5) are not in "
        "Megatron-Core's transformer layer",
    )
