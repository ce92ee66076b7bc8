"""The library in a worker of the static page: the library's own documents, from the page's own origin, without a network."""

from __future__ import annotations

import functools
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from math import isclose
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from megatron_memory_estimator.service.answers import answered
from megatron_memory_estimator.web.static import site as site_files
from megatron_memory_estimator.web.static import write_site

DEEPSEEK = {
    "model": "deepseek-ai/DeepSeek-V3",
    "num_gpus": 1024,
    "settings": {"pp": 16, "ep": 64, "num_layers_in_first_pipeline_stage": 4, "num_layers_in_last_pipeline_stage": 1},
    "detail": "full",
}
HYBRID = {
    "model": "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "num_gpus": 64,
    "settings": {"ep": 8},
    "detail": "full",
}
QWEN = {"model": "Qwen/Qwen3-8B", "num_gpus": 8, "detail": "full"}
SMALL = {**QWEN, "axes": {"tp": "1,2,4", "pp": "1,2,4", "vpp": "1", "recompute": "none,full"}}
WORKER = """
async ([url, questions]) => {
  const began = performance.now(), said = [], answers = [];
  const worker = new Worker(url, { type: "module" });
  worker.postMessage({ id: 0, ...questions[0] });
  await new Promise((done, failed) => {
    let asked = 0, at = began;
    worker.onerror = (event) => failed(new Error(event.message));
    worker.onmessage = ({ data }) => {
      if (data.id === undefined || data.progress) return said.push(data);
      const now = performance.now();
      answers.push({ ...data, milliseconds: now - at });
      at = now;
      asked += 1;
      if (asked === questions.length) done();
      else worker.postMessage({ id: asked, ...questions[asked] });
    };
  });
  worker.terminate();
  return { said, answers };
}
"""


def drive(page: Page, url: str, *questions: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """What a new worker says, and its answers to questions one after the other; the time of the first counts from the start."""
    page.goto(f"{url}page.css")  # a page of the same origin that asks nothing itself
    asked = [{"tool": tool, "arguments": arguments} for tool, arguments in questions]
    found: dict[str, Any] = page.evaluate(WORKER, [f"{url}worker.js", asked])
    assert [answer["id"] for answer in found["answers"]] == list(range(len(questions)))
    return found


class Unknowing(SimpleHTTPRequestHandler):
    """A file server that knows no types but those of pages and scripts."""

    def guess_type(self, path: Any) -> str:
        known = {".js": "text/javascript", ".css": "text/css"}
        return known.get(Path(str(path)).suffix, "application/octet-stream")

    def log_message(self, *_: Any) -> None:
        """Nothing is printed."""


class Quiet(ThreadingHTTPServer):
    """Says nothing of a browser that stops reading."""

    def handle_error(self, *_: Any) -> None:
        """Nothing is printed."""


@contextmanager
def unknowing(folder: Path) -> Iterator[str]:
    """The address of a file server that knows no types but those of scripts and styles."""
    server = Quiet(("127.0.0.1", 0), functools.partial(Unknowing, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def tried(browser: Browser, site: str) -> Iterator[tuple[Page, list[str]]]:
    """A page without a network: every request to another origin fails, and is noted."""
    context = browser.new_context()
    own, elsewhere = urlsplit(site).netloc, []

    def only_own(route: Route) -> None:
        if urlsplit(route.request.url).netloc == own:
            route.continue_()
        else:
            elsewhere.append(route.request.url)
            route.abort()

    context.route("**/*", only_own)
    yield context.new_page(), elsewhere
    context.close()


def library(tool: str, arguments: dict[str, Any]) -> Any:
    """What the library says to the same question here."""
    return json.loads(
        json.dumps(answered({"tool": tool, "arguments": arguments, "folder": None, "seconds": 600, "hub": False}))
    )


def same(found: Any, library: Any) -> bool:
    """Whether two documents are one: all words and whole numbers, and seconds to 12 digits, for logarithms differ in their last bit."""
    if isinstance(library, dict):
        return list(found) == list(library) and all(same(found[name], value) for name, value in library.items())
    if isinstance(library, list):
        return len(found) == len(library) and all(map(same, found, library))
    if isinstance(library, float):
        return isinstance(found, int | float) and isclose(found, library, rel_tol=1e-12, abs_tol=1e-12)
    return bool(found == library)


def test_its_documents_are_the_librarys_to_the_byte(tried: tuple[Page, list[str]], site: str) -> None:
    page, elsewhere = tried
    questions = [
        ("estimate", DEEPSEEK),
        ("estimate", HYBRID),
        ("estimate", QWEN),
        ("explain", DEEPSEEK),
        ("lanes", HYBRID),
        ("advise", QWEN),
    ]
    found = drive(page, site, *questions)["answers"]
    for question, answer in zip(questions, found, strict=True):
        assert same(answer["answer"], library(*question)["answer"]), question[0]
    assert found[0]["answer"] == library("estimate", DEEPSEEK)["answer"], "not one bit differs"
    assert found[0]["answer"]["peak"]["allocated_bytes"] > 2**36
    assert not elsewhere


def test_a_plan_without_numpy_is_the_librarys(tried: tuple[Page, list[str]], site: str) -> None:
    page, elsewhere = tried
    (answer,) = drive(page, site, ("plan", SMALL))["answers"]
    assert same(answer["answer"], library("plan", SMALL)["answer"])
    assert len(answer["answer"]["plans"]) > 3 and not elsewhere


def test_the_first_screen_needs_no_engine(tried: tuple[Page, list[str]], site: str) -> None:
    page, elsewhere = tried
    page.route("**/pyodide/**", lambda route: None)  # never answered
    page.goto(site)
    expect(page.locator(".verdict")).to_contain_text("Fits")
    expect(page.locator("svg.timeline")).to_be_visible()
    expect(page.locator("section[aria-label^='Alive on stage']").first).to_be_visible()
    assert not elsewhere


JOBS, SEARCHES = 50, 6


def jobs() -> Iterator[dict[str, Any]]:
    """Random runs of the catalogue that are legal."""
    random, names = (
        Random(38),
        [one["name"] for one in library("models", {"detail": "full"})["answer"] if not one["refused"]],
    )
    while True:
        settings: dict[str, Any] = {
            name: random.choice((1, 2, 4, 8)) for name in ("tp", "pp", "ep") if random.random() < 0.6
        }
        settings |= {
            "gpu": random.choice(("H100-80GB", "H200-141GB", "B200-192GB")),
            "micro_batch_size": random.choice((1, 2)),
        }
        if random.random() < 0.5:
            settings["recompute_granularity"] = random.choice(("full", "selective"))
        asked = {
            "model": random.choice(names),
            "num_gpus": random.choice((8, 32, 64, 256)),
            "settings": settings,
            "detail": "full",
        }
        if "answer" in library("estimate", asked):
            yield asked


def test_bytes_and_plans_of_many_runs_are_the_servers(tried: tuple[Page, list[str]], site: str) -> None:
    page, elsewhere = tried
    asked: list[tuple[str, dict[str, Any]]] = [("estimate", one) for one in islice(jobs(), JOBS)]
    axes = {"vpp": "1", "recompute": "none,full", "micro_batch_size": "1", "cp": "1"}
    for model, gpus in zip(
        ("Qwen/Qwen3-8B", "meta-llama/Llama-3.1-70B", "Qwen/Qwen3-30B-A3B"), (8, 64, 16), strict=True
    ):
        asked += [
            ("plan", {"model": model, "num_gpus": gpus, "axes": {**axes, "features": set_}, "detail": "full"})
            for set_ in ("published", "none")
        ]
    assert len(asked) == JOBS + SEARCHES
    answers = drive(page, site, *asked)["answers"]
    differ = [
        one
        for one, answer in zip(asked, answers, strict=True)
        if not same(answer.get("answer"), library(*one).get("answer"))
    ]
    assert not differ and not elsewhere


def test_of_a_large_space_a_part_is_searched_and_said_and_nobody_else_is_asked(
    tried: tuple[Page, list[str]], site: str
) -> None:
    page, elsewhere = tried
    axes = {"tp": "2,4", "cp": "1,2,4"}
    (answer,) = drive(page, site, ("plan", {**QWEN, "num_gpus": 64, "axes": axes}))["answers"]
    (said,) = [one for one in answer["answer"]["assumptions"] if "without NumPy" in one]
    assert re.fullmatch(r"without NumPy a part of the space is searched: vpp 1,.*, of [0-9,]+ legal layouts", said)
    assert answer["answer"]["plans"] and not elsewhere


def test_what_is_wrong_is_one_sentence(tried: tuple[Page, list[str]], site: str) -> None:
    page, elsewhere = tried
    questions: list[tuple[str, dict[str, Any]]] = [
        ("estimate", {**QWEN, "settings": {"tp": 3}}), ("estimate", {**QWEN, "model": "a/b"}), ("nothing", {}),
        ("estimate", {**QWEN, "model": "/etc/passwd"}), ("estimate", {"text": "[" * 100_000}), ("estimate", QWEN),
    ]  # fmt: skip
    *wrong, right = drive(page, site, *questions)["answers"]
    for answer in wrong:
        assert (
            set(answer) == {"id", "error", "milliseconds"}
            and "\n" not in answer["error"]
            and len(answer["error"]) < 600
        )
    assert "is not divisible by" in wrong[0]["error"]
    assert "answer" in right and not elsewhere


def test_a_file_server_that_knows_no_wasm_will_do(browser: Browser, tmp_path: Path) -> None:
    write_site(str(tmp_path / "below" / "site"), site_files())
    with unknowing(tmp_path) as url, browser.new_page() as page:
        (answer,) = drive(page, f"{url}below/site/", ("estimate", QWEN))["answers"]
        assert {"answer": answer["answer"]} == library("estimate", QWEN)


def test_files_that_are_missing_are_named(browser: Browser, tmp_path: Path) -> None:
    folder = tmp_path / "site"
    write_site(str(folder), site_files())
    with unknowing(folder) as url:
        for name in ("pyodide/pyodide.asm.wasm", "pyodide/pyodide-lock.json", "pyodide/pyodide.js", "engine.json"):
            (folder / name).rename(tmp_path / "aside")
            with browser.new_page() as page:
                (answer,) = drive(page, url, ("estimate", QWEN))["answers"]
            assert Path(name).name in answer["error"] and "could not start" in answer["error"], answer
            (tmp_path / "aside").rename(folder / name)


def test_the_site_needs_no_network_after_the_first_visit(browser: Browser, site: str) -> None:
    """The second visit is kept whole by the service worker; the third has no network, and the run can be changed."""
    context = browser.new_context()
    context.set_default_timeout(60_000)
    page = context.new_page()
    link = f"{site}#/estimate?model=Qwen/Qwen3-8B&num_gpus=8&s.tensor_model_parallel_size=4"
    page.goto(link)
    expect(page.locator(".verdict")).to_be_visible(timeout=60_000)
    page.evaluate("navigator.serviceWorker.ready.then(() => true)")
    page.reload()
    expect(page.locator(".verdict")).to_be_visible(timeout=60_000)
    context.set_offline(True)
    page.reload()
    expect(page.locator(".verdict")).to_be_visible(timeout=60_000)
    before = page.locator(".figure-of").inner_text()
    page.get_by_label("sequence length").fill("8192")
    expect(page.locator(".figure-of")).not_to_have_text(before)
    context.close()


def test_a_start_says_how_far_it_is(browser: Browser, site: str) -> None:
    """Of a slow network: the share of the engine that is there, before the first answer."""
    context = browser.new_context(service_workers="block")
    page = context.new_page()
    session = context.new_cdp_session(page)
    session.send("Network.enable")
    session.send(
        "Network.emulateNetworkConditions",
        {"offline": False, "latency": 5, "downloadThroughput": 4_000_000, "uploadThroughput": 4_000_000},
    )
    page.add_init_script(
        "window.seen = []; addEventListener('loading-engine', (event) => window.seen.push(event.detail))"
    )
    page.goto(f"{site}#/estimate?model=Qwen/Qwen3-8B&num_gpus=8")
    expect(page.locator(".verdict")).to_be_visible(timeout=120_000)
    seen = page.evaluate("window.seen")
    most = max(seen, key=lambda one: one["bytes"])  # a second engine, for what is asked next, may be on its way already
    assert len(seen) > 10 and 0.9 * most["total"] < most["bytes"] <= most["total"]
    context.close()
