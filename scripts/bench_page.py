"""How long the page takes with both engines: from opening it to the first verdict, and from a change to the new one.

python scripts/bench_page.py    needs Chromium (`make bench-page` has it)
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from statistics import median

from page_servers import COMMAND, SERVE, running
from playwright.sync_api import Browser, Page, sync_playwright

RUNS = {
    "Qwen3-8B": "#/estimate?model=Qwen/Qwen3-8B&num_gpus=8",
    "DeepSeek-V3, pp 16": "#/estimate?model=deepseek-ai/DeepSeek-V3&num_gpus=1024&s.pp=16&s.ep=32&s.global_batch_size=1024",
}
TIMES = 5
CHANGED = """value => new Promise((done) => {
  const peak = () => document.querySelector(".figure-of").dataset.bytes;
  const was = peak();
  const buttons = [...document.querySelectorAll("button[data-setting=tensor_model_parallel_size]")];
  const start = performance.now();
  new MutationObserver((_, watch) => {
    if (peak() === was) return;
    watch.disconnect();
    done(performance.now() - start);
  }).observe(document.body, { subtree: true, attributes: true, childList: true, characterData: true });
  buttons.find((one) => one.textContent === value).click();
})"""


def opened(browser: Browser, url: str) -> tuple[Page, float]:
    """The page, and seconds until its verdict is there, with nothing in the browser's memory."""
    page = browser.new_context().new_page()
    start = time.perf_counter()
    page.goto(url, wait_until="commit")
    page.wait_for_selector(".verdict")
    return page, time.perf_counter() - start


def settled(page: Page) -> None:
    page.wait_for_selector("form.controls[aria-busy=false]")
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(600)


def timed(browser: Browser, engine: str, url: str) -> None:
    """Print the times of every run."""
    for name, link in RUNS.items():
        first, changes = [], []
        for _ in range(TIMES):
            page, seconds = opened(browser, url + link)
            first.append(seconds)
            for value in ("2", "4", "1"):
                settled(page)
                changes.append(float(page.evaluate(CHANGED, value)))
            page.context.close()
        print(
            f"{engine:6} {name:19} first verdict {median(first):.2f} s ({min(first):.2f} to {max(first):.2f}); "
            f"a change {median(changes):.0f} ms ({min(changes):.0f} to {max(changes):.0f})"
        )


def main() -> None:
    """Both engines, one after the other."""
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"]
        )
        with running(SERVE) as url:
            timed(browser, "serve", url)
        subprocess.run([COMMAND, "site", "--out", f"{folder}/site"], check=True, stdout=subprocess.DEVNULL)
        files = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", f"{folder}/site"]
        with running(files) as url:
            timed(browser, "site", url)
        browser.close()


if __name__ == "__main__":
    main()
