"""The documentation site: `make docs` writes it to build/docs."""

from __future__ import annotations

import re
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "megatron_memory_estimator" / "__init__.py"
(release,) = re.findall(r'^__version__ = "(.+)"$', PACKAGE.read_text(), re.MULTILINE)

project = "megatron-memory-estimator"
copyright = "the authors of megatron-memory-estimator, Apache-2.0"
version = release
extensions = ["myst_nb", "sphinx_external_toc"]
nb_execution_mode = "off"  # the notebook has its outputs
external_toc_path = "contents.yml"
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"megatron-memory-estimator {release}"
html_copy_source = html_show_sourcelink = False
templates_path: list[str] = []
nitpicky = True
html_static_path = ["_static"]
html_css_files = ["wide.css"]
smartquotes = False
