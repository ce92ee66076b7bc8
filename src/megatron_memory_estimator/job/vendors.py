"""What models of one vendor have of their own: settings, what these exclude and need, and which kinds their layers are.

A vendor is a file of this folder and one in `modules/`.
"""

from __future__ import annotations

from . import deepseek_v4, falcon_h1, flash_next, gemma4, kimi_k3
from .vendor import Vendor

VENDORS: tuple[Vendor, ...] = (
    falcon_h1.VENDOR,
    gemma4.EXPERTS,
    gemma4.DENSE,
    kimi_k3.VENDOR,
    flash_next.VENDOR,
    deepseek_v4.VENDOR,
)
"""In the order in which their exclusions are checked and the residual stream is asked for; those that come later win over earlier."""
