"""The two engines of the page as a person starts them, and a browser."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from ..serving import served as serving
from .browser import ARGUMENTS, Opened

expect.set_options(timeout=30_000)  # other work on the machine is not the page's
COMMAND = str(Path(sys.executable).with_name("megatron-memory"))


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=list(ARGUMENTS))
        yield found
        found.close()


def started(command: list[str]) -> tuple[subprocess.Popen[str], str]:
    """A server, and the address that it prints."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"http://[\w.:\[\]]+/?", line):
            Thread(target=process.stdout.read, daemon=True).start()  # what it says later fills no pipe
            return process, found[0].rstrip("/") + "/"
    raise AssertionError(f"{command} ended with {process.wait()}")


def ended(process: subprocess.Popen[str]) -> None:
    process.terminate()
    process.wait(10)
    assert process.stdout is not None
    process.stdout.close()


@pytest.fixture(scope="session")
def served() -> Iterator[str]:
    """The address of `megatron-memory serve`."""
    with serving() as (found, _):
        yield f"http://127.0.0.1:{found}/"


@pytest.fixture(scope="session")
def port() -> Iterator[int]:
    """The port of a server whose requests may take 20 s."""
    with serving("--seconds", "20") as (found, _):
        yield found


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the static page under a plain file server, in a folder below its root."""
    root = tmp_path_factory.mktemp("files")
    subprocess.run([COMMAND, "site", "--out", str(root / "memory")], check=True)
    server = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", str(root)]
    process, url = started(server)
    yield url + "memory/"
    ended(process)


@pytest.fixture(params=["serve", "site"])
def opened(request: pytest.FixtureRequest, browser: Browser) -> Iterator[Opened]:
    """The page, once with each engine."""
    kind = request.param
    found = Opened(browser, request.getfixturevalue("served" if kind == "serve" else "site"), kind)
    yield found
    found.close()
