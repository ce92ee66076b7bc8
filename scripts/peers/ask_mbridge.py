"""mbridge: its memory estimator lies beside the package in the repository (ISEEKYAN/mbridge `memory_estimator/`)."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

from answer import main


def ask(case: dict[str, Any]) -> dict[str, Any]:
    found = list(Path(sysconfig.get_path("purelib")).rglob("*memory_estimator*"))
    return {"why": "its wheel has no memory estimator" if not found else f"not asked: {found[0].name}"}


main(ask)
