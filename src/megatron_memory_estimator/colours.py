"""The colours of the parts of memory, in plots and notebooks; web/src/colours.ts has the same for the page.

Those of Okabe and Ito that colour-blind readers tell apart on white and on black.
"""

from __future__ import annotations

COLOURS = {
    "weights": "#0072b2",
    "gradients": "#e69f00",
    "optimizer": "#009e73",
    "activations": "#cc79a7",
    "transient": "#56b4e9",
    "pipeline": "#8c6bb1",
    "workspace": "#8a6d3b",
}
OTHER = "#999999"
"""What is none of them, and several together."""
