"""The three endpoints of mbridge's web interface, so that its clients work unchanged.

The fields of the request and `{processed_report, raw_report}` are those of ISEEKYAN/mbridge's memory estimator; the keys of a report are
those that its `estimate_from_hf.py` prints (`report/classic.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response

from ..service.pool import Workers
from ..service.schema import MBridge
from .answering import EVERY, answer
from .documents import refusals

PATHS = ("/local-hf-configs", "/get-megatron-config/", "/estimate_with_mbridge")
"""Beginnings of the paths."""
METHODS = {"/local-hf-configs": "GET", "/get-megatron-config/{hf_id:path}": "GET", "/estimate_with_mbridge": "POST"}
"""The method of each path."""


def router(workers: Workers) -> APIRouter:
    """The paths, with the refusals that all paths have."""
    found = APIRouter(tags=["mbridge"], responses=refusals())

    @found.get("/local-hf-configs", response_model=list[str], operation_id="local_hf_configs")
    async def local_hf_configs() -> list[str]:
        """The names of the bundled models, each of which the other two paths take."""
        from ..inputs.catalog import entries

        return list(entries())

    @found.get("/get-megatron-config/{hf_id:path}", response_model=dict[str, Any], operation_id="get_megatron_config")
    async def get_megatron_config(request: Request, hf_id: str) -> Response:
        """The architecture of a model in TransformerConfig's names."""
        return await answer(request, lambda progress: workers.answer("megatron_config", {"model": hf_id}, progress))

    @found.post(
        "/estimate_with_mbridge", response_model=dict[str, list[dict[str, Any]]], operation_id="estimate_with_mbridge"
    )
    async def estimate_with_mbridge(request: Request, given: MBridge) -> Response:
        """A report for each pipeline stage; "gb" is 2^30 bytes, as there, and the total is what torch has allocated at the peak."""
        asked = given.model_dump()
        return await answer(request, lambda progress: workers.answer("mbridge", asked, progress))

    for path, method in METHODS.items():
        found.add_api_route(
            path, other(method), methods=[one for one in EVERY if one != method], include_in_schema=False
        )
    return found


def other(method: str) -> Callable[[], Coroutine[Any, Any, None]]:
    """What answers the other methods of a path, which the files of the page behind it would answer with theirs."""

    async def refused() -> None:
        raise HTTPException(405, headers={"allow": method})

    return refused
