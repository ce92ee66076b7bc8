"""Processes that answer requests: they stay, they are ended with what they work on, and slow ones hold nobody up."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from megatron_memory_estimator.cli import main
from megatron_memory_estimator.cli.serve import address
from megatron_memory_estimator.errors import EstimatorError
from megatron_memory_estimator.service.answers import LARGEST_MEMORY
from megatron_memory_estimator.service.pool import BusyError, FaultError, Pool, Workers
from megatron_memory_estimator.web.guard import own_names

from .serving import RUN, SLOW, posted, served


def worked(use: Callable[[Workers], Awaitable[Any]], **options: Any) -> Any:
    """What is done with processes that end afterwards."""

    async def alive() -> Any:
        workers = Workers(None, options.pop("seconds", 30.0), hub=False, **{"quick": (1, 8), "slow": (1, 0), **options})
        try:
            return await use(workers)
        finally:
            await workers.close()

    return asyncio.run(alive())


def pids(of: Pool) -> list[int]:
    """The processes that are idle or busy."""
    idle = [task.result() for task in of.idle if task.done()]
    return [worker.process.pid for worker in (*idle, *of.busy)]


def living(pid: int) -> bool:
    """Whether a process runs; one that is only not yet collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def dead(pid: int) -> bool:
    """Whether a process has ended."""
    return not living(pid)


async def until(true: Callable[[], object], seconds: float = 20) -> None:
    """Wait for something that must come true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


def test_a_process_answers_many_requests() -> None:
    async def use(workers: Workers) -> list[int]:
        found = []
        for settings in ({"tp": 2}, {"tp": 3}, {"tp": 4}):
            with (
                nullcontext()
                if settings["tp"] != 3
                else pytest.raises(EstimatorError, match="tensor_model_parallel_size=3")
            ):
                answer = await workers.answer("estimate", {**RUN, "settings": settings, "detail": "full"})
                assert json.loads(answer)["schema"] == "megatron-memory-estimate/1"
            found += pids(workers.quick)
        return found

    found = worked(use)
    assert len(found) == 3 and len(set(found)) == 1
    assert not living(found[0])


def test_a_request_that_is_cancelled_or_late_ends_its_process_and_another_takes_its_place() -> None:
    async def use(workers: Workers) -> tuple[int, ...]:
        asked = asyncio.create_task(workers.answer("plan", SLOW))
        await until(lambda: bool(workers.slow.busy))
        (first,) = pids(workers.slow)
        asked.cancel()
        await until(lambda: not living(first))
        workers.seconds = 1.2
        asked = asyncio.create_task(
            workers.slow.answer(b'{"tool": "plan", "arguments": {}, "folder": null, "seconds": 1e9}', 0.01)
        )
        await until(lambda: bool(workers.slow.busy))
        (second,) = pids(workers.slow)
        with pytest.raises(EstimatorError, match=r"took longer than 0\.01 s"):
            await asked
        await until(lambda: not living(second))
        workers.seconds = 30
        assert json.loads(
            await workers.answer("compare", {"models": ["Qwen/Qwen3-8B"], "layouts": [{"tp": 1}, {"tp": 2}]})
        )
        return first, second, *pids(workers.slow)

    assert len(set(worked(use))) == 3


def test_a_process_that_dies_is_a_sentence_and_is_replaced() -> None:
    async def use(workers: Workers) -> None:
        asked = asyncio.create_task(workers.answer("plan", SLOW))
        await until(lambda: bool(workers.slow.busy))
        (pid,) = pids(workers.slow)
        os.kill(pid, 9)
        with pytest.raises(FaultError, match=r"ended \(-9\) before it answered"):
            await asked
        await workers.answer("models", {})
        (pid,) = pids(workers.quick)
        os.kill(pid, 9)  # while it is idle
        await until(lambda: not living(pid))
        await asyncio.sleep(0.1)
        assert json.loads(await workers.answer("models", {"model": "Qwen/Qwen3-8B"}))["name"] == "Qwen/Qwen3-8B"

    worked(use)


def test_a_fault_of_the_estimator_is_not_a_refusal() -> None:
    async def use(workers: Workers) -> None:
        with pytest.raises(FaultError, match=r"failed at this request \(\w+\); please report it"):
            await workers.answer("no tool", RUN)
        assert await workers.answer("estimate", RUN)

    worked(use)


def test_so_many_wait_and_no_more() -> None:
    async def use(workers: Workers) -> None:
        asked = asyncio.create_task(workers.answer("plan", SLOW))
        await until(lambda: bool(workers.slow.busy))
        with pytest.raises(BusyError, match="ask again in a moment"):
            await workers.answer("plan", SLOW)
        assert json.loads(await workers.answer("estimate", RUN))  # a slow one holds no quick one up
        asked.cancel()

    worked(use)


def test_memory_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that needs more than a process may have gets a sentence."""

    async def use(workers: Workers) -> None:
        (task,) = workers.quick.idle
        limits = Path(f"/proc/{(await task).process.pid}/limits")
        await workers.answer("models", {"model": "Qwen/Qwen3-8B"})
        (line,) = [line for line in limits.read_text().splitlines() if line.startswith("Max address space")]
        assert line.split()[3:5] == [str(LARGEST_MEMORY)] * 2

    async def started(workers: Workers) -> None:
        workers.quick.start()
        await use(workers)

    worked(started)


def test_a_client_that_goes_away_ends_the_work_and_slow_requests_hold_no_quick_one_up() -> None:
    with served("--seconds", "50") as (port, pid):
        assert posted(port, "estimate", RUN)[0] == 200
        for accept in ("application/json", "application/x-ndjson"):
            rested = worked_seconds(pid)
            connection = HTTPConnection("127.0.0.1", port, timeout=60)
            headers = {"content-type": "application/json", "accept": accept}
            connection.request("POST", "/api/v1/plan", json.dumps(SLOW), headers)
            asyncio.run(until(partial(busier, pid, rested)))
            start = time.perf_counter()
            assert posted(port, "estimate", {**RUN, "settings": {"tp": 4}})[0] == 200
            assert time.perf_counter() - start < 5
            (at_work,) = busier(pid, rested)
            connection.close()
            asyncio.run(until(partial(dead, at_work)))


def worked_seconds(server: int) -> dict[int, float]:
    """Seconds of a core of each of the server's processes."""
    found = {}
    for task in map(int, Path(f"/proc/{server}/task/{server}/children").read_text().split()):
        fields = Path(f"/proc/{task}/stat").read_text().rpartition(")")[2].split()
        found[task] = int(fields[11]) / os.sysconf("SC_CLK_TCK")
    return found


def busier(server: int, rested: dict[int, float]) -> list[int]:
    """The processes that have worked for nearly a second since, which is longer than they warm up."""
    return [task for task, seconds in worked_seconds(server).items() if seconds > rested.get(task, 0.0) + 0.9]


def test_a_port_in_use_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SystemExit) as ended:
            main(["serve", "--port", str(port)])
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        f"error: cannot listen at '127.0.0.1' port {port}: another program listens there; give another --port, or --port 0 for any\n"
    )


def test_without_the_extra_serve_is_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "uvicorn", None)
    with pytest.raises(SystemExit) as ended:
        main(["serve"])
    assert ended.value.code == 2
    assert "pip install 'megatron-memory-estimator[web]'" in capsys.readouterr().err


def test_addresses_as_browsers_have_them() -> None:
    assert address("127.0.0.1", 8000) == "http://127.0.0.1:8000/"
    assert address("0.0.0.0", 80) == "http://127.0.0.1:80/"
    assert address("::1", 8000) == address("::", 8000) == "http://[::1]:8000/"
    assert own_names("0.0.0.0", 80) == {"127.0.0.1", "127.0.0.1:80", "localhost", "localhost:80", "[::1]", "[::1]:80"}
    assert own_names("Box", 8000) - own_names("::", 8000) == {"box:8000"}


def test_an_address_of_another_machine_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--host", "192.0.2.1"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("error: cannot listen at '192.0.2.1' port 8000: ")


def test_ctrl_c_ends_a_request_that_is_worked_on() -> None:
    with served() as (port, pid):
        rested = worked_seconds(pid)
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", "/api/v1/plan", json.dumps(SLOW), {"content-type": "application/json"})
        asyncio.run(until(partial(busier, pid, rested)))
        at_work = list(worked_seconds(pid))
    connection.close()
    assert not any(map(living, at_work))
