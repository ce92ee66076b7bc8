#!/usr/bin/env python3
"""GPU memory of a Megatron training run from a Hugging Face config: `estimate_from_hf.py MODEL --tp 4 --pp 4 --json`."""

import sys
from pathlib import Path

try:
    import megatron_memory_estimator  # noqa: F401
except ImportError:  # inside a clone of the repository that is not installed
    sys.path[:0] = [str(folder / "src") for folder in Path(__file__).resolve().parents[3:4]]

try:
    from megatron_memory_estimator.cli.estimate_from_hf import main
except ImportError as error:
    print(f"error: {error}; install the package with `pip install .` in its repository", file=sys.stderr)
    sys.exit(2)

main()
