"""Screenshots of every view of the page: light, dark and narrow; a dense model, DeepSeek-V3 on 16 stages, a hybrid. `screen-` takes the
first screens: a dense model, one with experts, reinforcement learning, DeepSeek-V4, one that is too large, one that leaves something open;
each in four sizes, light and dark.

python scripts/screenshots.py FOLDER [WORD [URL]]    those with a word in their names; of a page of its own, or a running one
"""

from __future__ import annotations

import sys
import zlib
from base64 import urlsafe_b64encode
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

from page_servers import BROWSER, SERVE, running
from playwright.sync_api import Page, sync_playwright

DENSE = "model=meta-llama/Llama-3.1-70B&num_gpus=64&s.tp=4&s.pp=4&s.global_batch_size=128"
V3 = (
    "model=deepseek-ai/DeepSeek-V3&num_gpus=1024&s.pp=16&s.ep=64&s.global_batch_size=2048&s.recompute_granularity=selective"
    "&s.recompute_modules=%5B%22mla_up_proj%22,%22moe_act%22,%22mlp%22%5D"
)
HYBRID = "model=Qwen/Qwen3-Next-80B-A3B-Instruct&num_gpus=32&s.pp=4&s.ep=8&s.gpu=H200-141GB&s.global_batch_size=256"
WIDE, NARROW = (1360, 1000), (400, 860)


class Shot(NamedTuple):
    """A picture: the address behind #/, the size of the window, and how far down it is scrolled."""

    name: str
    link: str
    size: tuple[int, int] = WIDE
    scheme: str = "light"
    to: str = ""
    press: str = ""


SHOTS = (
    Shot("estimate", f"estimate?{V3}"),
    Shot("page-estimate", f"estimate?{V3}", (1360, 1290)),
    Shot("page-plan", "plan?model=Qwen/Qwen3-30B-A3B&num_gpus=32&planned=1&axis.micro_batch_size=1,2", (1360, 900)),
    Shot("estimate-dark", f"estimate?{V3}", scheme="dark"),
    Shot("estimate-dense", f"estimate?{DENSE}"),
    Shot("estimate-hybrid", f"estimate?{HYBRID}"),
    Shot("estimate-narrow", f"estimate?{DENSE}", NARROW, to=".verdict"),
    Shot("tensors", f"estimate?{V3}", to="section[aria-label^='Alive']"),
    Shot("tensors-dark", f"estimate?{HYBRID}", scheme="dark", to="section[aria-label^='Alive']"),
    Shot("advice", f"estimate?{DENSE}&advice=1", to="section[aria-label='What to change']"),
    Shot("refused", f"estimate?{DENSE}&s.vpp=3"),
    Shot("plan", "plan?model=Qwen/Qwen3-8B&num_gpus=8&planned=1"),
    Shot("plan-dark", "plan?model=Qwen/Qwen3-30B-A3B&num_gpus=32&planned=1&axis.micro_batch_size=1,2", scheme="dark"),
    Shot("plan-narrow", "plan?model=Qwen/Qwen3-8B&num_gpus=8&planned=1", NARROW, to="svg.figure"),
    Shot("compare", f"estimate?{DENSE}", press="compare"),
    Shot("compare-dark", f"estimate?{DENSE}", scheme="dark", press="compare"),
    Shot("compare-narrow", f"estimate?{DENSE}", NARROW, press="compare"),
)  # fmt: skip

RL = """python3 -m verl.trainer.main_ppo --config-name ppo_megatron_trainer actor_rollout_ref.model.path=Qwen/Qwen3-8B \\
  data.train_batch_size=128 data.max_prompt_length=1024 data.max_response_length=7168 actor_rollout_ref.rollout.name=vllm \\
  actor_rollout_ref.rollout.tensor_model_parallel_size=2 actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \\
  actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 \\
  actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4 actor_rollout_ref.actor.strategy=megatron \\
  trainer.n_gpus_per_node=8 trainer.nnodes=1
"""


def packed(text: str) -> str:
    """A text as the address of the page holds it."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return urlsafe_b64encode(packer.compress(text.encode()) + packer.flush()).decode().rstrip("=")


FIRST = {
    "dense": DENSE,
    "moe": V3,
    "rl": f"text={packed(RL)}&file=grpo.sh",
    "v4": "model=deepseek-ai/DeepSeek-V4-Flash&num_gpus=64&s.pp=4&s.ep=16&s.gpu=H200-141GB&s.global_batch_size=256",
    "too-large": "model=meta-llama/Llama-3.1-70B&num_gpus=16&s.tp=4",
    "open": f"text={packed(RL.replace('=Qwen/Qwen3-8B', '=$MODEL'))}&file=grpo.sh",
}
SCREENS = tuple(
    Shot(f"screen-{name}-{width}{'-dark' if scheme == 'dark' else ''}", f"estimate?{link}", (width, height), scheme)
    for name, link in FIRST.items()
    for width, height in ((1440, 900), (1280, 720), (768, 1024), (400, 860))
    for scheme in ("light", "dark")
)


def settled(page: Page) -> None:
    """Wait until nothing is asked any more."""
    page.wait_for_selector(".verdict, .refusal, table", timeout=120_000)
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(600)
    page.wait_for_function("() => !document.querySelector('progress, .busy, [aria-busy=true]')", timeout=180_000)
    page.wait_for_timeout(400)


def compare(page: Page) -> None:
    """Pin three layouts and compare them."""
    for tp in (4, 2, 8):
        page.evaluate("tp => { location.hash = location.hash.replace(/(s\\.t[a-z_]+)=\\d+/, '$1=' + tp) }", tp)
        settled(page)
        page.get_by_role("button", name="Pin this run").click()
    page.get_by_role("button", name="Compare").click()


def main(folder: str, word: str = "", url: str = "") -> None:
    """Take the pictures."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    with nullcontext(url) if url else running(SERVE) as page:
        taken(page, Path(folder), word)


def taken(url: str, folder: Path, word: str) -> None:
    """Take the pictures of a running page."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(**BROWSER)
        for shot in (*SHOTS, *SCREENS):
            if word not in shot.name or (not word and shot in SCREENS):
                continue
            width, height = shot.size
            scheme = "dark" if shot.scheme == "dark" else "light"
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            page.goto(f"{url}#/{shot.link}")
            settled(page)
            if shot.press == "compare":
                compare(page)
                settled(page)
            if shot.to:
                page.locator(shot.to).first.scroll_into_view_if_needed()
                page.evaluate(
                    "selector => window.scrollTo(0, document.querySelector(selector).getBoundingClientRect().top + scrollY - 12)",
                    shot.to,
                )
                page.wait_for_timeout(200)
            page.screenshot(path=folder / f"{shot.name}.png")
            print(shot.name, flush=True)
            page.close()
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
