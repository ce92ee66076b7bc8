"""What frameworks and tools print of memory, read with its quantity, unit, rank and iteration, and set beside the estimate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megatron_memory_estimator import TrainingJob, cli, estimate
from megatron_memory_estimator.device.outside import nccl_terms
from megatron_memory_estimator.errors import ConfigError
from megatron_memory_estimator.evidence.figures import figures, largest, out_of_memory
from megatron_memory_estimator.report.log import Log, compared_log, log_document, log_lines

GIB = 2**30
FORMATS = [
    (
        "[Rank 4] (after 2 iterations) memory (MB) | allocated: 11702.15 | max allocated: 16918.70 | reserved: 18040.00 | "
        "max reserved: 18040.00 | total device memory used: 20458.19",
        [("reserved", True, 18916311040, "4", 2), ("device", False, 21451967037, "4", 2)],
    ),
    (
        "[Rank 0] (after 2 iterations) memory (GB) | mem-allocated-gigabytes: 21.407 | mem-max-allocated-gigabytes: 37.618 | "
        "mem-max-reserved-gigabytes: 41.205 | mem-alloc-retires: 0",
        [("reserved", True, 41205000000, "0", 2)],
    ),
    (
        "(WorkerDict pid=1) After update_actor, memory allocated (GB): 24.83, memory reserved (GB): 61.30, device memory used/total (GB): "
        "66.91/79.11",
        [("allocated", False, 26661009489, "", None), ("reserved", False, 65820373811, "", None),
         ("device", False, 71844065443, "", None)],
    ),
    (
        "(TaskRunner pid=1) step:3 - perf/max_memory_allocated_gb:57.114 - perf/max_memory_reserved_gb:61.301 - "
        "perf/cpu_memory_used_gb:412.508 - response_length/max:8192.000",
        [("allocated", True, 61325690535, "", 3), ("reserved", True, 65821447553, "", 3), ("host", False, 442927092334, "", 3)],
    ),
    (
        "[2026-08-03 11:24:09] memory_utils.py:61 - [Rank 5] Memory-Usage after step: {'gpu': '5', 'total_GB': 139.81, 'free_GB': 37.38, "
        "'used_GB': 102.43, 'allocated_GB': 92.77, 'reserved_GB': 94.15, 'host_total_GB': 2015.21, 'host_used_GB': 790.9}",
        [("device", False, 109983375032, "5", None), ("allocated", False, 99611029012, "5", None),
         ("reserved", False, 101092792729, "5", None), ("host", False, 849222408601, "5", None)],
    ),
    (
        "(MegatronPolicyWorker pid=8123) GPU Memory before optimizer offload: 38.11GB allocated, 52.40GB reserved",
        [("allocated", False, 40920300912, "", None), ("reserved", False, 56264071577, "", None)],
    ),
    ('{"loss": 0.66, "iteration": "20/1200", "memory(GiB)": 66.31, "train_speed(s/it)": 10.06}', [("reserved", True, 71199820349, "", 20)]),
    ("\x1b[31mstep: 20  \x1b[36mmemory: 47.55GiB(60.11%)  \x1b[34mtps: 6,412", [("reserved", True, 51056423731, "", 20)]),
    ("INFO | recipes.llm.train_ft | step 12 | epoch 0 | mem 38.27 GiB | tps 18211.40", [("allocated", True, 41092099604, "", 12)]),
    (
        "iteration       30/     500 | rocm mem usage/free/total/usage_ratio: 171.42GB/84.56GB/255.98GB/66.97% | rank-7 rocm max mem "
        "usage/usage_ratio: 188.93GB/73.81% |",
        [("device", False, 184060823470, "last", 30), ("device", True, 202862042808, "7", 30)],
    ),
    (
        "actor_train after train_step, memory allocated (GB): 31.22, memory reserved (GB): 58.71, memory max reserved (GB): 60.28125, "
        "rss (GB): 41.90234375 memory device used (GB): 64.87109375",
        [("reserved", True, 64726499328, "", None), ("host", False, 44992299008, "", None), ("device", False, 69654806528, "", None)],
    ),
    (
        'DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-1",Hostname="node-a"} 118213',
        [("device", False, 118213 * 2**20, "node-a/0", None)],
    ),
    ('{"_step": 40, "memory/mem-max-allocated-gigabytes": 71.3}', [("allocated", True, 71300000000, "", 40)]),
    ('{"step": 2, "mem-max-allocated-bytes": 61325690535}', [("allocated", True, 61325690535, "last", 2)]),
    ('{"_step": 7, "system.gpu.3.memoryAllocatedBytes": 83751862272.0}', [("device", False, 83751862272, "3", 7)]),
    ('"Step","run-1 - memory/mem-max-reserved-gigabytes"\n"10","66.4"\n"20",""', [("reserved", True, 66400000000, "", 10)]),
    (
        "timestamp, index, memory.used [MiB], memory.total [MiB]\n2026/08/03, 0, 71966 MiB, 81559 MiB\n2026/08/03, 1, [N/A], 81559 MiB",
        [("device", False, 71966 * 2**20, "0", None)],
    ),
    (
        "device,VRAM Total Memory (B),VRAM Total Used Memory (B)\ncard1,274861129728,183912112128\n",
        [("device", False, 183912112128, "1", None)],
    ),
    (
        '{"traceEvents": [{"ph": "X", "name": "aten::empty"}, {"name": "[memory]", "args": {"Device Type": 1, "Device Id": 0, '
        '"Total Allocated": 1509949440, "Total Reserved": 2147483648}}, {"name": "[memory]", "args": {"Device Type": 0, "Device Id": -1, '
        '"Total Allocated": 9999999999, "Total Reserved": 0}}, {"name": "[memory]", "args": {"Device Type": 1, "Device Id": 0, '
        '"Bytes": -512, "Total Allocated": 1107296256, "Total Reserved": 2147483648}}]}',
        [("allocated", True, 1509949440, "0", None), ("reserved", True, 2147483648, "0", None)],
    ),
    (
        "a:1:2 [0] NCCL INFO ncclCommInitRankConfig comm 0x5 rank 3 nranks 16 cudaDev 3 nvmlDev 3 busId 1 commId 0x3 - Init COMPLETE\n"
        "a:1:2 [0] NCCL INFO NVLS comm 0x5 headRank 0 nHeads 8 buffSize 4194304 memSize 2097152 nvlsPerRankSize 201326592 nvlsTotalSize "
        "1610612736\na:1:2 [0] NCCL INFO transport/p2p.cc:265 Cuda Alloc Size 10485760 pointer 0x7f2b40000000\n"
        "a:1:2 [0] NCCL INFO transport/net.cc:748 Cuda Alloc Size 67108864 pointer 0x7f2b44000000",
        [("NCCL", True, 1610612736 + 10485760 + 67108864, "3", None)],
    ),
    ("a:1:2 [0] NCCL INFO NVLS comm 0x5 headRank 0 nHeads 8 nvlsTotalSize 1610612736", [("NCCL", False, 1610612736, "", None)]),
]  # fmt: skip
"""A line of each format, and its figures: quantity, whether it is a peak, bytes, rank or GPU, iteration."""


@pytest.mark.parametrize(("text", "expected"), FORMATS)
def test_a_line_of_each_format_is_read(text: str, expected: list[tuple[object, ...]]) -> None:
    found = [(one.quantity, one.peak, one.nbytes, one.of, one.iteration) for one in largest(figures(text))]
    assert found == expected


def test_a_table_without_heads_is_asked_for() -> None:
    with pytest.raises(ConfigError, match="record it with --format=csv"):
        figures("0, 71966, 81559\n1, 60118, 81559\n")


OUT_OF_MEMORY = [
    (
        "RuntimeError: CUDA out of memory. Tried to allocate 2.47 GiB (GPU 3; 79.15 GiB total capacity; 71.20 GiB already allocated; "
        "1.13 GiB free; 76.02 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting",
        {"asked": 2.47, "capacity": 79.15, "free": 1.13, "allocated": 71.20, "unallocated": 76.02 - 71.20, "outside": 0},
    ),
    (
        "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.28 GiB. GPU 2 has a total capacity of 79.11 GiB of "
        "which 6.77 GiB is free. Process 51234 has 18.55 GiB memory in use. Including non-PyTorch memory, this process has 53.78 GiB "
        "memory in use. Of the allocated memory 48.11 GiB is allocated by PyTorch, and 2.05 GiB is reserved by PyTorch but unallocated.",
        {"asked": 9.28, "capacity": 79.11, "free": 6.77, "allocated": 48.11, "unallocated": 2.05, "others": 18.55, "outside": 3.62},
    ),
    (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 768.00 MiB. GPU 0 has a total capacity of 183.36 GiB of which "
        "412.31 MiB is free. Including non-PyTorch memory, this process has 182.94 GiB memory in use. Of the allocated memory 171.06 GiB "
        "is allocated by PyTorch, with 23.44 GiB allocated in private pools (e.g., CUDA Graphs), and 4.20 GiB is reserved by PyTorch but "
        "unallocated.",
        {"asked": 0.75, "allocated": 171.06, "private": 23.44, "unallocated": 4.20, "outside": 7.68},
    ),
    (
        "- Observe OOM, will dump snapshot to /ckpt/memory_snapshot_time1.11_rank5_snapshot.pickle. (device=5 alloc=65863155712 "
        "device_alloc=150121021440 device_free=40131330048; stacktrace is as follows)\n"
        "- [Rank 5] Memory-Usage when oom: {'gpu': '5', 'used_GB': 102.43, 'allocated_GB': 92.77, 'reserved_GB': 94.15}",
        {"asked": 65863155712 / GIB, "free": 40131330048 / GIB, "allocated": 92.77, "unallocated": 94.15 - 92.77},
    ),
]  # fmt: skip
"""Messages of torch 2.0, 2.4 and 2.12 and of slime's observer, and their GiB."""


@pytest.mark.parametrize(("text", "expected"), OUT_OF_MEMORY)
def test_what_ran_out_is_read(text: str, expected: dict[str, float]) -> None:
    (one,) = out_of_memory(text)
    assert {name: getattr(one, name) / GIB for name in expected} == pytest.approx(expected, abs=1e-6)


@pytest.fixture(scope="module")
def job() -> TrainingJob:
    words = (
        "--num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 "
    )
    words += "--micro-batch-size 1 --global-batch-size 16 --vocab-size 50257 --bf16 --pipeline-model-parallel-size 2"
    return TrainingJob.from_megatron_args(words.split(), 4)


def read(job: TrainingJob, text: str) -> Log:
    return compared_log(text, estimate(job))


def test_each_figure_stands_beside_its_own_quantity_and_stage(job: TrainingJob) -> None:
    """Reserved is not allocated, rank 3 is of the second stage, and Megatron-LM's tags are the last rank's."""
    first, last = estimate(job).stages
    report = "[Rank {}] (after {} iterations) memory (MB) | allocated: 1 | max allocated: 2 | reserved: 3 | max reserved: 4000\n"
    told = read(job, report.format(0, 2) + report.format(3, 2)).figures
    assert [(one.pp_rank, one.expected) for one in told] == [(0, first.reserved), (1, last.reserved)]
    (one,) = read(job, report.format(0, 1)).figures
    less = first.peak_allocated_bytes - first.first_step_peak_allocated_bytes
    assert less > 0 and one.expected == (first.reserved.low - less, first.reserved.high - less)
    (tag,) = read(job, f'{{"step": 9, "mem-max-allocated-bytes": {last.peak_allocated_bytes}}}').figures
    assert (tag.pp_rank, tag.more) == (1, 0)
    (smi,) = read(job, "index, memory.used [MiB]\n1, 99999999 MiB").figures
    assert smi.expected == first.device_used and smi.more == smi.figure.nbytes - first.device_used.high


def test_the_first_step_and_the_last_are_both_compared(job: TrainingJob) -> None:
    report = "[Rank 0] (after {} iterations) memory (MB) | allocated: 1 | max allocated: {}\n"
    found = read(job, "".join(report.format(step, 10 * step) for step in (1, 2, 50)))
    assert [(one.report.iteration, one.figure) for one in found.ranks] == [(1, "first step"), (50, "peak")]


def test_a_figure_of_a_moment_is_a_lower_bound(job: TrainingJob) -> None:
    (low,) = read(job, "[Rank 0] GPU Memory before offload: 0.10GB allocated, 0.20GB reserved").figures[:1]
    (high,) = read(job, "[Rank 0] GPU Memory before offload: 900.00GB allocated, 900.00GB reserved").figures[:1]
    assert low.more == 0 and high.more == high.figure.nbytes - estimate(job).stages[0].peak_allocated_bytes


def test_what_ran_out_is_said_first(job: TrainingJob) -> None:
    peak = estimate(job).stages[1].peak_allocated_bytes / GIB
    said = list(log_lines(read(job, OUT_OF_MEMORY[1][0])))
    assert said == [
        "Rank 2 ran out of memory: it asked for 9.28 GiB with 48.11 allocated, 2.05 reserved and free, 3.62 of the process outside torch, "
        "18.55 of other processes, on a GPU of 79.11 GiB.",
        f"That is 57.39 GiB allocated, more than the {peak:.2f} GiB expected at the peak of stage 1.",
    ]
    (row,) = log_document(read(job, OUT_OF_MEMORY[1][0]))["ran_out"]
    assert (row["rank"], row["pp_rank"], row["outside_bytes"]) == ("2", 1, round(3.62 * GIB))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("nothing of memory", "docs/how-to/validation.md lists the formats"),
        ("[rank9]: CUDA out of memory. Tried to allocate 2.00 GiB", "there is no rank 9: the run has 4 GPUs"),
        (
            "[Rank 8] GPU Memory before offload: 1GB allocated, 1GB reserved",
            "there is no rank 8: the run has 4 GPUs",
        ),
    ],
)
def test_a_log_of_another_run_is_refused(text: str, sentence: str, job: TrainingJob) -> None:
    with pytest.raises(ConfigError) as refused:
        read(job, text)
    assert sentence in str(refused.value)


LAYERS = """[per-layer report]
memory source = PRECISE trace  (peak=window high-water; retained=activation held to backward)
cell = mean/max   (time in ms, memory in MiB)
-- forward --
 layer  type              fwd_ms                peak            retained
     0 dense      11.8/     12.9    2610.4/   2610.4     {0}/    {1}
     7 dense      19.4/     22.7    3198.0/   3344.5     {2}/    {3}
-- backward --
 layer  type              bwd_ms                peak            retained
     7 dense      37.7/     41.2    4102.6/   4310.0    -471.8/   -471.8
"""
"""A report by layer as Megatron-LM's pull request 5662 prints it, shortened."""


def test_a_report_by_layer_stands_beside_what_layers_keep(job: TrainingJob) -> None:
    """Layers of two stages; the backward table is not read."""
    first, last = (stage.rank.plans[0] for stage in estimate(job).stages)
    kept = [next(run.trace.saved_bytes for run in plan.runs if run.first_layer >= 0) for plan in (first, last)]
    each = [size / 2**20 for size in kept]
    found = read(job, LAYERS.format(each[0], each[0], each[1] / 2, each[1] * 2))
    assert [(one.report.number, one.pp_rank, one.expected, one.more) for one in found.layers] == [
        (0, 0, kept[0], pytest.approx(0, abs=1)),
        (7, 1, kept[1], 0),
    ]
    assert list(log_lines(found)) == ["Each of 2 layers keeps what is expected for its backward, within 2%."]
    more = read(job, LAYERS.format(each[0], each[0], each[1] + 50, each[1] + 60))
    (said,) = log_lines(more)
    assert said.startswith("Layer 7 (dense) keeps ") and said.endswith(" are expected.")
    assert more.layers[1].more == pytest.approx(50 * 2**20, abs=2)
    with pytest.raises(ConfigError, match="there is no layer 9: the run has 8 layers"):
        read(job, LAYERS.replace("     7 dense      19.4", "     9 dense      19.4").format(1, 1, 1, 1))


def test_a_report_by_layer_that_is_no_trace_has_no_layers(job: TrainingJob) -> None:
    """PR 5662 announces a fallback, which has no figures of single layers."""
    with pytest.raises(ConfigError, match="the log has no memory lines"):
        read(job, LAYERS.replace("PRECISE trace", "allocator deltas").format(1, 1, 1, 1))


def test_what_nccl_says_stands_beside_its_communicators(job: TrainingJob) -> None:
    terms = nccl_terms(job)
    (one,) = read(job, FORMATS[-2][0]).figures
    assert one.expected == (sum(term.low for term in terms), sum(term.high for term in terms))
    more = FORMATS[-2][0].replace("nvlsTotalSize 1", "nvlsTotalSize 3")
    assert next(log_lines(read(job, more))).endswith(" GiB expected: --nccl-gib 3.43 counts what it says.")


def test_the_command_shows_figures_of_other_frameworks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "verl.log"
    log.write_text(FORMATS[3][0])
    cli.main(["validate", "--log", str(log), "Qwen/Qwen3-8B", "--num-gpus", "8"])
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("verl: peak allocated, iteration 3 is 57.11 GiB, ") and "--measured 57.11GiB" in said
    cli.main(["validate", "--log", str(log), "--json", "Qwen/Qwen3-8B", "--num-gpus", "8"])
    found = json.loads(capsys.readouterr().out)
    assert [(one["quantity"], one["expected_bytes"] is None) for one in found["figures"]] == [
        ("allocated", False),
        ("reserved", False),
        ("host", True),
    ]
