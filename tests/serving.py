"""A server on loopback, and one in the process of the tests."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any

PORT = 8000
OWN = f"http://127.0.0.1:{PORT}"
RUN: dict[str, Any] = {"model": "Qwen/Qwen3-8B", "num_gpus": 8, "settings": {"tp": 2}}
SLOW: dict[str, Any] = {
    "model": "deepseek-ai/DeepSeek-V3", "fewest_gpus": True, "axes": {"tp": "1,2,4,8", "micro_batch_size": "1-8"},
}  # fmt: skip
"""A plan of many seconds."""


@contextmanager
def served(*options: str) -> Iterator[tuple[int, int]]:
    """The port of `megatron-memory serve` with these options, and its process; it ends with Ctrl-C, without a word."""
    line = [sys.executable, "-m", "megatron_memory_estimator", "serve", "--port", "0", *options]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ})
    assert process.stdout is not None and process.stderr is not None
    found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/ \(Ctrl-C ends it\)\n", process.stdout.readline())
    assert found is not None, process.stderr.read()
    try:
        yield int(found[1]), process.pid
    finally:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, "", "")


def posted(port: int, tool: str, arguments: dict[str, Any], **headers: str) -> tuple[int, Any]:
    """The status and the document of a request."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(
        "POST", f"/api/v1/{tool}", json.dumps(arguments), {"content-type": "application/json", **headers}
    )
    answer = connection.getresponse()
    found = json.loads(answer.read())
    connection.close()
    return answer.status, found
