"""The answers to requests: which tools there are, and what becomes of an error.

What the MCP server, the HTTP server and the page have in common. Nothing here needs more than the engine needs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ..errors import EstimatorError, NumPyError, Question, QuestionsError
from .arguments import checked
from .jobs import Files
from .request import Progress, Request
from .tools import ANSWERS

TOOLS = tuple(ANSWERS)
"""Every tool by its name."""
LARGEST_MEMORY = 4 * 2**30
"""Bytes of address space of one request."""


def answered(request: Mapping[str, Any], progress: Progress | None = None) -> dict[str, Any]:
    """`{"answer": document}` of a request, or `{"error": sentence}`.

    A request has `tool`, `arguments`, `folder` (the only one in which files may be opened, or null), `seconds`, and `hub`: false
    where names are looked up in the catalogue alone. With an error, `questions` may say what a run leaves open.
    """
    assert request["tool"] in TOOLS
    deadline = time.monotonic() + 0.9 * float(request["seconds"])
    files = Files(request["folder"], hub=bool(request.get("hub", True)))
    try:
        given = checked(request["tool"], request["arguments"])
        return {"answer": ANSWERS[request["tool"]](Request(given, files, deadline, progress))}
    except NumPyError as error:
        return {"error": error.reason}
    except QuestionsError as error:
        return {"error": str(error), "questions": [asked(one) for one in error.questions]}
    except EstimatorError as error:
        return {"error": str(error)}
    except RecursionError:
        return {"error": "the request is nested too deeply"}
    except MemoryError:
        return {"error": f"the request needs more than {LARGEST_MEMORY // 2**30} GiB"}


def asked(one: Question) -> dict[str, Any]:
    """A question that a run leaves open as a document: `what` is open, the `option` that answers, the `values` that the file names."""
    return {"what": one.what, "option": one.option, "values": list(one.values)}
