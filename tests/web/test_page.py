"""The page in a real browser, with both engines: what a person does, and the figures beside the library's."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from megatron_memory_estimator import LayoutError, TrainingJob, advise, estimate

from ..helpers import FACTS
from ..test_snapshot_beside import DENSE
from .browser import Opened

QWEN = "#/estimate?model=Qwen/Qwen3-8B&num_gpus=8&s.gpu=H100-80GB"
V3 = (
    "#/estimate?model=deepseek-ai/DeepSeek-V3&num_gpus=1024&s.pipeline_model_parallel_size=16"
    "&s.expert_model_parallel_size=64&s.global_batch_size=1024&s.recompute_granularity=selective"
)
SCRIPT = """#!/bin/bash
torchrun --nproc_per_node 8 pretrain_gpt.py \\
  --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --ffn-hidden-size 11008 --swiglu \\
  --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 \\
  --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel \\
  --vocab-size 32000 --bf16 --use-distributed-optimizer --normalization RMSNorm --disable-bias-linear \\
  --untie-embeddings-and-output-weights --position-embedding-type rope
"""
YAML = """MODEL_ARGS:
  --num-layers: 24
  --hidden-size: 2048
  --num-attention-heads: 16
  --seq-length: 2048
  --max-position-embeddings: 2048
  --micro-batch-size: 2
  --global-batch-size: 32
  --vocab-size: 50304
  --tensor-model-parallel-size: 2
  --bf16: true
"""
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 2048, "intermediate_size": 5632,
    "num_hidden_layers": 22, "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 32000,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False,
}  # fmt: skip
BRIDGE = """_target_: megatron.bridge.training.config.ConfigContainer
model:
  _target_: megatron.bridge.models.llama.llama_provider.Llama31ModelProvider8B
  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: 14336
  num_attention_heads: 32
  num_query_groups: 8
  seq_length: 8192
  vocab_size: 128256
  tensor_model_parallel_size: 2
  gated_linear_unit: true
train: {micro_batch_size: 1, global_batch_size: 64}
ddp: {use_distributed_optimizer: true}
mixed_precision: bf16_mixed
data_parallel_size: 4
"""


def qwen(**settings: Any) -> TrainingJob:
    return TrainingJob.from_hf("Qwen/Qwen3-8B", 8, gpu="H100-80GB", **settings)


def peak_of(job: TrainingJob) -> int:
    return estimate(job).peak_stage.peak_allocated_bytes


def shown_peak(page: Page) -> Locator:
    return page.locator(".verdict .figure-of")


def expect_peak(page: Page, nbytes: int) -> None:
    expect(shown_peak(page)).to_have_attribute("data-bytes", str(nbytes))


def choice(page: Page, setting: str, value: str) -> Locator:
    """A value of a setting, once the values are those of the run that is shown."""
    expect(page.locator("form.controls[aria-busy=false]")).to_be_visible()
    return page.locator(f'button[data-setting="{setting}"]', has_text=re.compile(f"^{re.escape(value)}$"))


def test_a_model_is_found_as_one_types_and_its_layout_changed(opened: Opened) -> None:
    page = opened("")
    model = page.get_by_role("combobox", name="Model")
    model.fill("qwen3 8b")
    expect(page.get_by_role("option").first).to_be_visible()
    page.get_by_role("option", name=re.compile(r"^Qwen.Qwen3-8B ")).click()
    expect(page.locator(".verdict")).to_contain_text("Qwen/Qwen3-8B")
    expect_peak(page, peak_of(TrainingJob.from_hf("Qwen/Qwen3-8B", 8)))
    choice(page, "tensor_model_parallel_size", "4").click()
    expect_peak(page, peak_of(TrainingJob.from_hf("Qwen/Qwen3-8B", 8, tensor_model_parallel_size=4)))
    page.get_by_label("sequence length").fill("8192")
    expect_peak(page, peak_of(TrainingJob.from_hf("Qwen/Qwen3-8B", 8, tensor_model_parallel_size=4, seq_length=8192)))
    page.go_back()
    page.go_back()
    page.wait_for_function("() => !location.hash.includes('seq_length')")


def test_the_back_button_undoes(opened: Opened) -> None:
    page = opened(QWEN)
    choice(page, "tensor_model_parallel_size", "2").click()
    expect_peak(page, peak_of(qwen(tensor_model_parallel_size=2)))
    page.go_back()
    expect_peak(page, peak_of(qwen()))
    page.go_forward()
    expect_peak(page, peak_of(qwen(tensor_model_parallel_size=2)))


def test_a_value_that_is_refused_says_why(opened: Opened) -> None:
    page = opened(QWEN)
    with pytest.raises(LayoutError) as refused:
        estimate(qwen(pipeline_model_parallel_size=3))
    three = choice(page, "pipeline_model_parallel_size", "3")
    expect(three).to_have_attribute("aria-disabled", "true")
    three.dispatch_event("click")
    expect(page.get_by_role("note")).to_have_text(str(refused.value))
    expect_peak(page, peak_of(qwen()))  # nothing was chosen
    page.get_by_role("combobox", name="GPUs").fill("7")
    expect_peak(page, peak_of(TrainingJob.from_hf("Qwen/Qwen3-8B", 7, gpu="H100-80GB")))
    choice(page, "tensor_model_parallel_size", "1").focus()
    page.goto(page.url.replace("num_gpus=7", "num_gpus=7&s.tensor_model_parallel_size=2"))
    expect(page.get_by_role("alert")).to_contain_text("num_gpus=7")


@pytest.mark.parametrize(
    ("name", "text"),
    [("config.json", json.dumps(CONFIG)), ("train.sh", SCRIPT), ("model.yaml", YAML), ("run.yaml", BRIDGE)],
)
def test_what_is_pasted_dropped_or_opened_is_the_run(opened: Opened, name: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(text)
    job = TrainingJob.from_hf(str(file)) if name.endswith(".json") else TrainingJob.from_file(str(file))
    wanted = peak_of(job)
    page = opened(QWEN)
    expect_peak(page, peak_of(qwen()))
    page.locator("input[type=file]").set_input_files(file)
    expect_peak(page, wanted)
    page.goto(opened.url + QWEN)
    expect_peak(page, peak_of(qwen()))
    page.evaluate(
        """text => { const data = new DataTransfer(); data.setData("text", text);
        document.dispatchEvent(new ClipboardEvent("paste", {clipboardData: data, bubbles: true})) }""",
        text,
    )
    expect_peak(page, wanted)
    page.goto(opened.url + QWEN)
    expect_peak(page, peak_of(qwen()))
    page.evaluate(
        """([text, name]) => { const data = new DataTransfer(); data.items.add(new File([text], name));
        window.dispatchEvent(new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true})) }""",
        [text, name],
    )
    expect_peak(page, wanted)
    page.wait_for_function("() => location.hash.includes('text=')")
    again = opened.another(page.url)  # the link holds the text
    expect_peak(again, wanted)
    expect(again.locator("textarea")).to_have_value(text)


SOURCED = """MODEL_ARGS=(--num-layers 4 --hidden-size 1024 --ffn-hidden-size 4096 --num-attention-heads 8 --vocab-size 32000
  --max-position-embeddings 2048 --swiglu)
"""
SOURCING = """#!/bin/bash
source "$REPOSITORY/models/small.sh"
torchrun --nproc-per-node 4 pretrain_gpt.py ${MODEL_ARGS[@]} --seq-length 2048 --micro-batch-size 1 --global-batch-size 8 --bf16
"""
DROP = """texts => { const data = new DataTransfer();
for (const [name, text] of Object.entries(texts)) data.items.add(new File([text], name));
window.dispatchEvent(new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true})) }"""


def test_several_files_are_dropped_together_or_one_after_another(opened: Opened, tmp_path: Path) -> None:
    whole = tmp_path / "run.sh"
    whole.write_text(SOURCING.replace('source "$REPOSITORY/models/small.sh"', SOURCED))
    wanted = peak_of(TrainingJob.from_file(str(whole)))
    page = opened(QWEN)
    page.evaluate(DROP, {"small.sh": SOURCED, "run.sh": SOURCING})
    expect_peak(page, wanted)
    expect(page.locator("select[name=run]")).to_have_value("run.sh")
    expect(page.locator("textarea")).to_have_value(SOURCING)
    page.wait_for_function("() => location.hash.includes('files=')")
    expect_peak(opened.another(page.url), wanted)  # the link holds them
    page.locator("select[name=run]").select_option("small.sh")  # which starts nothing
    expect(page.locator(".refusal")).to_be_visible()
    page.go_back()
    expect_peak(page, wanted)
    alone = opened(QWEN)
    alone.evaluate(DROP, {"run.sh": SOURCING})
    expect(alone.locator(".refusal")).to_contain_text("small.sh, which line 2 sources, is missing: drop it on the page")
    alone.evaluate(DROP, {"small.sh": SOURCED})
    expect_peak(alone, wanted)


def test_a_moment_of_the_timeline_shows_its_tensors(opened: Opened) -> None:
    page = opened(V3)
    job = TrainingJob.from_hf(
        "deepseek-ai/DeepSeek-V3", 1024, pipeline_model_parallel_size=16, expert_model_parallel_size=64,
        global_batch_size=1024, recompute_granularity="selective",
    )  # fmt: skip
    found = estimate(job)
    figure = page.locator("svg.timeline")
    box = figure.bounding_box()
    assert box is not None
    for share, row in ((0.3, 4), (0.55, 9), (0.93, 15)):
        figure.click(position={"x": 46 + share * (box["width"] - 56), "y": 15 * row + 5})
        page.wait_for_function(f"() => location.hash.includes('stage={row}&') || location.hash.endsWith('stage={row}')")
        index = int(page.evaluate("new URLSearchParams(location.hash.split('?')[1]).get('moment')"))
        moment = found.timeline(row).moments[index]
        heading = page.locator("h2 [data-bytes]")
        expect(heading).to_have_attribute("data-bytes", str(moment.highest_bytes))
        table = page.get_by_role("table", name="Tensors")
        more = page.get_by_role("button", name=re.compile("Show all .* rows"))
        if more.count():
            more.click()
        expect(more).to_have_count(0)
        sizes = table.locator("tbody td:nth-child(7) span").evaluate_all("cells => cells.map(cell => cell.title)")
        assert sum(int(one.removesuffix(" bytes").replace(",", "")) for one in sizes) == moment.highest_bytes


def test_what_does_not_fit_is_answered_unasked(opened: Opened) -> None:
    """Three changes stand there, the others behind a button, and Apply takes one; where no layout was given the first that fits, too."""
    page = opened(QWEN)
    card = page.get_by_label("What to change")
    apply = card.locator("ol").last.get_by_role("button", name="Apply")
    expect(apply.first).to_be_visible(timeout=60_000)
    advice = advise(qwen())
    expect(card.get_by_role("progressbar")).to_have_count(0, timeout=120_000)
    if len(advice.outcomes) > 3:
        expect(apply).to_have_count(3)
        card.get_by_role("button", name=f"Show all {len(advice.outcomes)}").click()
    expect(apply).to_have_count(len(advice.outcomes))
    expect(apply.first.locator("..").locator(".gauge")).to_be_visible()
    apply.first.click()
    expect_peak(page, advice.outcomes[0].peak)


def test_the_first_layout_that_fits_is_proposed(opened: Opened) -> None:
    """Qwen3-8B without a layout: the first plan of its 8 GPUs."""
    page = opened("#/estimate?model=Qwen/Qwen3-8B&num_gpus=8&s.gpu=H100-80GB&s.micro_batch_size=1&s.recompute_granularity=full"
                  "&s.recompute_method=uniform&s.recompute_num_layers=1&s.seq_length=65536")  # fmt: skip
    card = page.get_by_label("What to change")
    first = card.locator("ol").first.locator("li").first
    expect(first).to_contain_text("on 8 GPUs", timeout=120_000)
    first.get_by_role("button", name="Apply").click()
    expect(page.locator(".verdict.good, .verdict.maybe")).to_be_visible(timeout=60_000)


def test_advice_is_found_where_it_fits(opened: Opened) -> None:
    page = opened(QWEN + "&s.tensor_model_parallel_size=4")
    page.get_by_role("button", name="Find changes").click()
    apply = page.get_by_role("button", name="Apply")
    advice = advise(qwen(tensor_model_parallel_size=4))
    expect(apply).to_have_count(len(advice.outcomes), timeout=60_000)


def test_the_phase_that_decides_is_shown_with_what_it_takes(opened: Opened) -> None:
    """The head, the first chart and the table have the bytes of the document."""
    page = opened(QWEN + "&s.tensor_model_parallel_size=4")
    found = estimate(qwen(tensor_model_parallel_size=4))
    verdict = found.verdict()
    row = page.locator("svg.phases g.bar", has_text="\u25b8")
    expect(row).to_have_count(1)
    low, high = (f"{size / 2**30:,.1f}" for size in verdict.device)
    expect(row).to_have_attribute("aria-label", re.compile(rf"{low} to {high} GiB on stage 0, fits, decides"))
    left = [f"{size / 2**30:,.1f}" for size in verdict.head_room]
    expect(page.locator(".big")).to_contain_text(f"Fits{left[0]} to {left[1]} GiB left")
    expect(page.locator("dl.figures")).to_contain_text("tokens/s/GPU")
    page.locator("svg.phases g.bar").nth(0).click()
    table = page.get_by_role("table", name="What it takes to train")
    stage = found.peak_stage
    expect(table.locator("tr", has_text="activations")).to_contain_text(
        f"{stage.breakdown_bytes['activations'] / 2**30:,.2f}"
    )
    expect(table.locator("tr").last).to_contain_text(f"{stage.device.low / 2**30:,.2f}")


OPEN_SCRIPT = SCRIPT.replace("--nproc_per_node 8", "--nnodes $NNODES --nproc_per_node 8").replace(
    "--swiglu", "--swiglu $MORE"
)


def test_what_a_script_leaves_open_is_a_field(opened: Opened, tmp_path: Path) -> None:
    page = opened("")
    script = tmp_path / "run.sh"
    script.write_text(OPEN_SCRIPT.replace("$MORE", ""))
    page.locator("input[type=file]").set_input_files(script)
    form = page.get_by_role("form", name="What is open")
    field = form.locator("input").first
    expect(field).to_be_visible()
    name = field.get_attribute("name")
    field.fill("4" if name == "open-NNODES" else "32")
    form.get_by_role("button", name="Go on").click()
    expect(page.locator(".verdict")).to_contain_text("on 32 GPUs")
    page.reload()
    expect(page.locator(".verdict")).to_contain_text("on 32 GPUs")


LOOP = """#!/bin/bash
for TP in 1 2; do
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 \\
  --max-position-embeddings 1024 --micro-batch-size 1 --vocab-size 32000 --bf16 --tensor-model-parallel-size $TP
done
"""


def test_the_runs_of_a_loop_are_buttons(opened: Opened, tmp_path: Path) -> None:
    page = opened("")
    script = tmp_path / "loop.sh"
    script.write_text(LOOP)
    page.locator("input[type=file]").set_input_files(script)
    page.get_by_role("form", name="What is open").get_by_role("button", name="2", exact=True).click()
    expect(page.locator(".verdict")).to_contain_text("tp 2")


def test_a_snapshot_of_torch_stands_beside_its_run(opened: Opened, tmp_path: Path) -> None:
    """The real classes of one layer with a leak: the page names the line, as the command does."""
    script = tmp_path / "run.sh"
    script.write_text(
        "torchrun --nproc_per_node 1 pretrain_gpt.py "
        + DENSE.replace("--num-layers 4", "--num-layers 1").replace("\n", " ")
    )
    page = opened("")
    page.locator("input[type=file]").set_input_files(script)
    expect(page.locator(".verdict")).to_contain_text("on 1 GPU")
    page.locator("input[type=file]").set_input_files(FACTS / "snapshots" / "planted_leak.pickle.gz")
    card = page.get_by_label("Your own run")
    expect(card).to_contain_text("The run explains", timeout=60_000)
    expect(card.get_by_role("table", name="in the snapshot alone")).to_contain_text("pretrain_gpt.py:1 forward_step")
    expect(card.get_by_role("table", name="what each pass leaves behind")).to_contain_text("of your own code")
    card.get_by_role("button", name="Put away").click()
    expect(card).not_to_contain_text("The run explains")


def test_a_log_and_a_figure_stand_beside_their_run(opened: Opened, tmp_path: Path) -> None:
    page = opened(QWEN + "&s.tensor_model_parallel_size=4")
    peak = peak_of(qwen(tensor_model_parallel_size=4))
    expect_peak(page, peak)
    card = page.get_by_label("Your own run")
    card.locator("input[name=measured]").fill(f"{peak / 2**30 + 4:.2f}GiB")
    card.get_by_role("button", name="Why?").click()
    expect(card).to_contain_text("GiB", timeout=60_000)
    log = tmp_path / "train.log"
    log.write_text(
        f"[Rank 0] (after 2 iterations) memory (MB) | allocated: 1 | max allocated: {peak / 2**20:.2f} | reserved: 1 | max reserved: 1\n"
    )
    page.locator("input[type=file]").set_input_files(log)
    expect(card.get_by_role("table", name="Figures of the log")).to_contain_text(f"{peak / 2**30:,.2f}")


def test_a_plan_shows_how_far_it_is_and_can_be_cancelled(opened: Opened) -> None:
    page = opened("#/plan?model=deepseek-ai/DeepSeek-V3&num_gpus=1024" + opened.narrow)
    page.get_by_role("button", name="Plan", exact=True).last.click()
    expect(page.locator("progress")).to_be_visible()
    page.wait_for_function("() => document.querySelector('progress')?.value > 0", timeout=120_000)
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("The search was cancelled.")).to_be_visible()
    expect(page.locator("progress")).to_have_count(0)
    # the engine answers others at once
    page.goto(opened.url + QWEN)
    expect_peak(page, peak_of(qwen()))


def test_a_plan_opens_on_the_page_of_estimates(opened: Opened) -> None:
    page = opened(
        "#/plan?model=Qwen/Qwen3-8B&num_gpus=8&axis.pp=1&axis.vpp=1&axis.cp=1&axis.micro_batch_size=1&axis.recompute=none,full"
    )
    page.get_by_role("button", name="Plan", exact=True).last.click()
    rows = page.get_by_role("table", name="Plans").locator("tbody tr")
    expect(rows.first).to_be_visible(timeout=120_000)
    peak = rows.first.locator("td").nth(9).inner_text()
    expect(page.locator("svg circle.plan")).to_have_count(rows.count())
    page.get_by_role("searchbox", name="Filter plans").fill("tp8")
    expect(rows.first).to_contain_text("tp8")
    page.get_by_role("searchbox", name="Filter plans").fill("")
    rows.first.locator("td").first.click()
    expect(shown_peak(page)).to_have_text(f"Peak {peak} GiB")


def test_a_link_restores_the_page(opened: Opened) -> None:
    page = opened(QWEN)
    choice(page, "tensor_model_parallel_size", "2").click()
    expect_peak(page, peak_of(qwen(tensor_model_parallel_size=2)))
    figure = page.locator("svg.timeline")
    box = figure.bounding_box()
    assert box is not None
    heading = page.locator("section[aria-label^='Alive on stage'] h2")
    before = heading.inner_text()
    figure.click(position={"x": box["width"] * 0.7, "y": box["height"] * 0.6})
    expect(heading).not_to_have_text(before)
    words = heading.inner_text()
    again = opened.another(page.url)
    expect_peak(again, peak_of(qwen(tensor_model_parallel_size=2)))
    expect(again.locator("section[aria-label^='Alive on stage'] h2")).to_have_text(words)


def test_words_open_the_glossary_at_themselves(opened: Opened) -> None:
    page = opened(QWEN)
    expect_peak(page, peak_of(qwen()))
    address = page.url
    page.locator(".verdict dt a.term", has_text="decided by").click()
    dialog = page.get_by_role("dialog", name="Glossary")
    current = dialog.locator("[aria-current]")
    expect(current).to_contain_text("the stage and the phase that decide the verdict")
    expect(current).to_be_in_viewport()
    expect(current).to_contain_text("docs/explanation/verdicts.md")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    page.locator("aside a.term", has_text="context parallel, cp").click()
    expect(current).to_contain_text("each sequence is split over cp GPUs")
    dialog.get_by_role("button", name="Close").click()
    expect(dialog).to_be_hidden()
    assert page.url == address


def test_runs_are_compared(opened: Opened) -> None:
    page = opened(QWEN)
    expect_peak(page, peak_of(qwen()))
    page.get_by_role("button", name="Pin this run").click()
    choice(page, "tensor_model_parallel_size", "4").click()
    expect_peak(page, peak_of(qwen(tensor_model_parallel_size=4)))
    page.get_by_role("button", name="Pin this run").click()
    page.get_by_role("button", name="Compare (2)").click()
    weights = page.locator("section[aria-label=Categories] tr", has_text="weights")
    parts = [
        estimate(job).peak_stage.breakdown_bytes["weights"] for job in (qwen(), qwen(tensor_model_parallel_size=4))
    ]
    for place, nbytes in enumerate(parts):
        expect(weights.locator("[data-bytes]").nth(place)).to_have_attribute("data-bytes", str(nbytes))
    expect(page.locator("section[aria-label='Settings that differ']")).to_contain_text("tensor_model_parallel_size")
    expect(page.locator("section[aria-label='Tensors that differ']")).to_contain_text("main_grad")


def test_a_part_of_the_step_is_brushed_wheeled_and_keyed(opened: Opened) -> None:
    page = opened(V3)
    figure = page.locator("svg.timeline")
    expect(figure).to_be_visible()
    figure.scroll_into_view_if_needed()
    box = figure.bounding_box()
    assert box is not None
    whole = page.get_by_role("button", name="Whole step")
    seconds = figure.locator(".axis").last.locator("text")

    def shown() -> list[str]:
        return [one for one in seconds.all_text_contents() if one]

    first = shown()
    at_y = box["y"] + 60
    page.mouse.move(box["x"] + 300, at_y)
    page.mouse.down()
    page.mouse.move(box["x"] + 420, at_y, steps=4)
    page.mouse.up()
    expect(whole).to_be_visible()
    part = shown()
    assert part != first and len(part) >= 2
    assert "moment=" not in page.url  # a brush is no press
    whole.click()
    expect(whole).to_have_count(0)
    assert shown() == first
    page.mouse.move(box["x"] + 400, at_y)
    page.mouse.wheel(0, 200)  # the page scrolls, the figure stays
    expect(whole).to_have_count(0)
    figure.focus()
    page.keyboard.press("+")
    expect(whole).to_be_visible()
    page.keyboard.press("0")
    expect(whole).to_have_count(0)


def test_everything_is_handed_out(opened: Opened) -> None:
    page = opened(QWEN)
    expect_peak(page, peak_of(qwen()))
    found = estimate(qwen())

    def taken(button: str) -> Path:
        with page.expect_download() as waiting:
            page.get_by_role("button", name=button, exact=True).first.click()
        return Path(waiting.value.path())

    assert json.loads(taken("JSON").read_text())["peak"]["allocated_bytes"] == peak_of(qwen())
    assert json.loads(taken("Timeline JSON").read_text())["peak_allocated_bytes"] == peak_of(qwen())
    assert str(peak_of(qwen())) in taken("Stages CSV").read_text()
    assert len(taken("Moments CSV").read_text().splitlines()) == 1 + len(found.timeline().moments)
    assert len(taken("Tensors CSV").read_text().splitlines()) == 1 + len(found.peak_stage.rows)
    assert taken("SVG").read_text().startswith("<?xml")
    assert taken("PNG").read_bytes().startswith(b"\x89PNG")
    assert taken("torch snapshot").read_bytes()[:2] == b"\x80\x04"
    report = taken("HTML report")
    assert report.stat().st_size < 1_000_000
    page.get_by_role("button", name="Launch arguments").click()
    expect(page.locator("pre")).to_contain_text("--num-layers 36")
    page.get_by_role("tab", name="YAML").click()
    expect(page.locator("pre")).to_contain_text("--num-layers: 36")
    kept = report.rename(report.with_suffix(".html"))
    frozen = opened.another(kept.as_uri())
    expect_peak(frozen, peak_of(qwen()))
    expect(frozen.locator("svg.timeline")).to_be_visible()
    expect(frozen.locator("h2 [data-bytes]")).to_have_attribute("data-bytes", str(peak_of(qwen())))
    frozen.locator("svg.timeline").focus()
    frozen.keyboard.press("End")  # between two steps
    expect(frozen.locator("h2 [data-bytes]")).to_have_attribute(
        "data-bytes", str(found.peak_stage.steady_allocated_bytes)
    )


def test_by_keyboard_alone(opened: Opened) -> None:
    page = opened("")
    expect(page.locator(".verdict")).to_be_visible()
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement?.name") == "model":
            break
    page.keyboard.type("qwen3 8b")
    expect(page.get_by_role("option").first).to_be_visible()
    names = page.get_by_role("option").all_inner_texts()
    for _ in range([one.startswith("Qwen/Qwen3-8B ") for one in names].index(True)):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect_peak(page, peak_of(TrainingJob.from_hf("Qwen/Qwen3-8B", 8)))
    expect(choice(page, "tensor_model_parallel_size", "1")).to_be_visible()
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement?.dataset?.setting") == "tensor_model_parallel_size":
            break
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect_peak(page, peak_of(TrainingJob.from_hf("Qwen/Qwen3-8B", 8, tensor_model_parallel_size=2)))
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement?.classList.contains('timeline')"):
            break
    page.keyboard.press("Home")
    page.wait_for_function("() => location.hash.includes('moment=0')")
    page.keyboard.press("p")
    page.wait_for_function("() => !location.hash.includes('moment=0')")


@pytest.mark.parametrize("link", [QWEN, V3, QWEN.replace("estimate", "plan"), QWEN.replace("estimate", "compare")])
def test_a_narrow_screen_is_wide_enough(opened: Opened, link: str) -> None:
    page = opened(link, width=400)
    page.wait_for_timeout(1500)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
