"""Links that were cut, changed or made by somebody else, and what a search and a comparison take from a run."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import pytest
from playwright.sync_api import expect

from .browser import Opened

QWEN = "model=Qwen/Qwen3-8B&num_gpus=16"


def packed(found: Any) -> str:
    """What a link says of a text."""
    deflate = zlib.compressobj(wbits=-15)
    return base64.urlsafe_b64encode(deflate.compress(json.dumps(found).encode()) + deflate.flush()).decode().rstrip("=")


UNREADABLE: tuple[Any, ...] = (None, 5, [None], [{}], [{"label": {}, "run": {"model": "a", "settings": {}}}])
LINKS = ["#/estimate?text=AAAA", "#/estimate?text=%%%", f"#/estimate?{QWEN}0000000000000000"]


@pytest.mark.parametrize("link", [*LINKS, *(f"#/compare?{QWEN}&pins={packed(pins)}" for pins in UNREADABLE)])
def test_a_link_that_cannot_be_read_is_said_to_be_so(opened: Opened, link: str) -> None:
    page = opened(link)
    expect(page.get_by_text("The address cannot be read")).to_be_visible()
    expect(page.get_by_role("button", name="Estimate")).to_be_visible()


@pytest.mark.parametrize("name", ["__proto__", "constructor", "toString"])
def test_names_that_objects_of_the_browser_have_are_names_of_settings(opened: Opened, name: str) -> None:
    page = opened(f"#/estimate?{QWEN}&s.{name}=1")
    expect(page.get_by_role("alert")).to_contain_text(f'unknown setting "{name}"')


def test_a_number_beyond_every_number_is_refused(opened: Opened) -> None:
    page = opened(f"#/estimate?{QWEN}&s.seq_length=1e400")
    expect(page.get_by_role("alert")).to_contain_text("seq_length='1e400'")


def test_a_search_is_not_held_to_the_layout_of_the_run(opened: Opened) -> None:
    """What is left empty is searched whole, also where the run says it; a plan that is opened has nothing else of it."""
    axes = "&axis.vpp=1&axis.cp=1&axis.micro_batch_size=1&axis.recompute=none&axis.pipeline_model_parallel_size=1,2"
    run = "&s.tp=4&s.pp=2&s.recompute_granularity=full&s.recompute_method=uniform&s.recompute_num_layers=1"
    page = opened(f"#/plan?{QWEN}{run}&s.num_layers_in_first_pipeline_stage=17{axes}&planned=1")
    rows = page.get_by_role("table", name="Plans").locator("tbody tr")
    expect(rows.filter(has_text="tp1 pp2")).not_to_have_count(0, timeout=120_000)
    row = rows.filter(has_text="tp8").first
    peak = row.locator("td").nth(9).inner_text()
    row.locator("td").first.click()
    expect(page.locator(".figure-of")).to_have_text(f"Peak {peak} GiB")


def test_a_pinned_run_that_is_refused_says_why(opened: Opened) -> None:
    pins = [{"label": f"tp {tp}", "run": {"model": "Qwen/Qwen3-8B", "num_gpus": 8, "settings": {"tp": tp}}} for tp in (2, 3)]  # fmt: skip
    page = opened(f"#/compare?{QWEN}&pins={packed(pins)}")
    expect(page.locator("main .refusal")).to_contain_text("tp 3: ")


def test_a_list_of_words_is_shown_whole(opened: Opened) -> None:
    page = opened(f'#/estimate?{QWEN}&s.recompute_granularity=selective&s.recompute_modules=["core_attn","mlp"]')
    expect(page.get_by_label("recompute_modules", exact=True)).to_have_value("core_attn,mlp")


def test_a_number_that_cannot_be_read_says_whose_figures_stand_beside_it(opened: Opened) -> None:
    page = opened(f"#/estimate?{QWEN}")
    field = page.locator("input[name=seq_length]")
    field.fill("8k")
    expect(page.get_by_text("8k is no whole number")).to_be_visible()
    field.fill("8,192")
    expect(page.get_by_text("is no whole number")).to_have_count(0)
    expect(page.get_by_label("Verdict")).to_contain_text("seq 8192")


def test_a_pinned_model_that_is_opened_has_not_the_name_of_another_runs_file(opened: Opened) -> None:
    pins = [{"label": "the model", "run": {"model": "Qwen/Qwen3-8B", "num_gpus": 8, "settings": {}}}]
    page = opened(f"#/compare?{QWEN}&file=other.sh&pins={packed(pins)}")
    page.get_by_role("button", name="the model", exact=True).click()
    page.locator("button[data-setting=tensor_model_parallel_size]", has_text="2").click()
    page.get_by_role("button", name="Pin this run").click()
    page.get_by_role("navigation").get_by_role("button", name="Compare").click()
    expect(page.locator("ul.pins")).to_contain_text("Qwen3-8B 8 GPUs tp 2")
    expect(page.locator("ul.pins")).not_to_contain_text("other.sh")
