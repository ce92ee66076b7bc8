"""Language models that differ from their family's where they stand behind a tower."""

from __future__ import annotations

from .converted import Converted
from .fields import Fields
from .moe import glm4_moe


def glm4v_moe(f: Fields) -> Converted:
    """GLM-4.5V: GLM-4.5's decoder without MTP, whatever the file says.

    Source: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/glm_vl/glm_45v_bridge.py`.
    """
    found = glm4_moe(f)
    return found._replace(settings={**found.settings, "mtp_num_layers": 0})
