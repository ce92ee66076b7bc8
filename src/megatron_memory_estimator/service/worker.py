"""Requests answered in a process of its own, which has limits of memory and can be ended.

Standard input holds one request as JSON: `tool`, `arguments`, `folder` (the only one in which files may be opened, or null) and
`seconds`. Standard output gets `{"answer": ...}` or `{"error": sentence}`.
"""

from __future__ import annotations

import json
import os
import sys

from .answers import LARGEST_MEMORY, answered


def main() -> None:
    """Answer the request on standard input."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (LARGEST_MEMORY, LARGEST_MEMORY))
    except (ImportError, ValueError, OSError):  # no such limits on this system
        pass
    print(json.dumps(answered(json.load(sys.stdin))))


if __name__ == "__main__":
    main()
