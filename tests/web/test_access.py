"""Who cannot see colours, or uses no pointer, has the page too: axe's rules on every view, light and dark, and on a phone."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Page, expect

from ..helpers import ROOT
from .browser import Opened

AXE = ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"
RUN = "axe.run(document, {resultTypes: ['violations']})"
QWEN = "model=Qwen/Qwen3-8B&num_gpus=8&s.gpu=H100-80GB"
VIEWS = {
    "fits": f"#/estimate?{QWEN}&s.tp=4",
    "too large": f"#/estimate?{QWEN}&s.micro_batch_size=1",
    "experts": "#/estimate?model=Qwen/Qwen3-30B-A3B&num_gpus=16&s.ep=8&s.pp=2&s.gpu=H200",
    "plan": f"#/plan?{QWEN}&axis.tp=2,4&axis.pp=1&axis.cp=1&axis.vpp=1&axis.recompute=none,full&planned=1",
    "refused": f"#/estimate?{QWEN}&s.tp=3",
}  # fmt: skip


@pytest.fixture(scope="session")
def axe() -> str:
    if not AXE.exists():
        subprocess.run(["npm", "ci", "--ignore-scripts", "--silent"], cwd=ROOT / "web", check=True)
    return Path(AXE).read_text()


def settled(page: Page, name: str) -> None:
    """Wait until nothing is on its way."""
    if name == "refused":
        expect(page.get_by_role("alert")).to_be_visible()
    elif name == "plan":
        expect(page.get_by_role("table", name="Plans")).to_be_visible(timeout=120_000)
    else:
        expect(page.locator("svg.timeline")).to_be_visible(timeout=60_000)
        expect(page.get_by_label("What to change").get_by_role("progressbar")).to_have_count(0, timeout=120_000)
    expect(page.locator("form.controls[aria-busy=true]")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", VIEWS)
def test_no_rule_is_broken(
    browser: Browser, served: str, axe: str, name: str, scheme: Literal["light", "dark"]
) -> None:
    found = Opened(browser, served, "serve", color_scheme=scheme)
    page = found(VIEWS[name], 1280 if scheme == "light" else 400)
    settled(page, name)
    page.evaluate(axe)
    violations: list[dict[str, Any]] = page.evaluate(RUN)["violations"]
    said = [(one["id"], [node["target"] for node in one["nodes"]][:4], one["help"]) for one in violations]
    found.close()
    assert not said, said
