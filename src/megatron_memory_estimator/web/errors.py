"""Errors over HTTP: `{"error": sentence}` with a status, whatever went wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping

from starlette.responses import Response

from ..errors import EstimatorError
from ..service.pool import BusyError, FaultError
from ..wording import LONGEST_QUESTIONS, plain

EVERY = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
"""The methods that are answered with a sentence where a path has them not."""


def status_of(error: EstimatorError) -> int:
    """422 where the request is refused, 429 where too many wait, 500 where the estimator failed."""
    return 429 if isinstance(error, BusyError) else 500 if isinstance(error, FaultError) else 422


def refusal(status: int, sentence: str, headers: Mapping[str, str] | None = None, *names: str) -> Response:
    """The sentence as JSON, under `error` and other names."""
    body = json.dumps(dict.fromkeys(("error", *names), plain(sentence, LONGEST_QUESTIONS)))
    more = {"retry-after": "1"} if status == 429 else {}
    return Response(body, status, {**more, **(headers or {})}, "application/json")
