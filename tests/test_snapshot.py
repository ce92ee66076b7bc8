"""Memory snapshots of torch: read safely and to the byte, named by our tensors, told in words.

`facts/snapshots` are of known content: each release's structure, rings that lost their beginning, expandable segments, pools, devices, and
`mcore_*` of the real classes of Megatron-Core 0.19.2 and TransformerEngine 2.20.2 (frames, sizes and order are theirs).
"""

from __future__ import annotations

import gzip
import io
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest

from megatron_memory_estimator.cli import main
from megatron_memory_estimator.errors import ConfigError
from megatron_memory_estimator.evidence import reading
from megatron_memory_estimator.evidence.account import OutOfMemory, Replay, account
from megatron_memory_estimator.evidence.naming import named, sites
from megatron_memory_estimator.evidence.reading import values_of
from megatron_memory_estimator.evidence.snapshot import read_snapshot
from megatron_memory_estimator.report.snapshot import notes, out_of_memory, sentence, snapshot_document

from .helpers import FACTS

EXPECTED = [json.loads(line) for line in (FACTS / "snapshots.jsonl").read_text().splitlines()]
MIB = 2**20


def sample(name: str) -> bytes:
    return (FACTS / "snapshots" / f"{name}.pickle.gz").read_bytes()


@pytest.mark.parametrize("one", EXPECTED, ids=lambda one: str(one["file"]))
def test_every_structure_is_read_to_the_byte(one: dict[str, Any]) -> None:
    found = read_snapshot((FACTS / "snapshots" / one["file"]).read_bytes())
    replay = Replay(found)
    got = {
        "segments": len(found.segments), "reserved": found.reserved, "allocated": found.allocated, "requested": found.requested,
        "pending_free": found.pending, "largest_free_block": found.largest_hole, "events": len(found.events),
        "unmatched_frees": len(replay.unmatched), "requested_at_start": replay.start, "peak_requested_in_trace": replay.peak,
    }  # fmt: skip
    if replay.oom is not None:
        got |= {"oom_request": replay.oom.size, "oom_device_free": replay.oom.free}
    assert got == {name: value for name, value in one.items() if name not in ("file", "torch")}


@pytest.mark.parametrize("one", EXPECTED, ids=lambda one: str(one["file"]))
def test_what_is_alive_at_the_peak_sums_to_it(one: dict[str, Any]) -> None:
    replay = Replay(read_snapshot((FACTS / "snapshots" / one["file"]).read_bytes()))
    assert sum(alive.nbytes for alive in replay.alive(replay.peak_at)) == replay.peak
    assert sum(alive.nbytes for alive in replay.alive(len(replay.events) - 1)) == replay.snapshot.requested
    assert sum(alive.nbytes for alive in replay.alive(-1)) == replay.start


def test_a_late_start_by_hand() -> None:
    """1,409,289,216 bytes made and 1,514,146,816 freed in the trace, 734,003,200 at the dump: 800 MiB before it. Four activations of 48 MiB
    with 256 bytes more each, logits of 96 MiB and their fp32 copy stand on top of that."""
    replay = Replay(read_snapshot(sample("late_start")))
    assert replay.start == 734_003_200 - 1_409_289_216 + 1_514_146_816 == 800 * MIB
    assert replay.peak == replay.start + 4 * 48 * MIB + 1536 + 96 * MIB + 192 * MIB


class Evil:
    def __reduce__(self) -> Any:
        return print, ("ran",)


def pickled(value: Any, protocol: int = 4) -> bytes:
    return pickle.dumps(value, protocol)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (pickled(Evil()), "STACK_GLOBAL"),
        (pickled(Evil(), 2), "GLOBAL"),
        (pickled(Evil(), 0), "no pickle"),
        (b"\x80\x04Nr\x00\x00\x00\x10.", "place 268,435,456 of a memo"),
        (b"\x80\x02X\x00\x00\x00\x80ab.", "2,147,483,648 bytes follow"),
        (b"\x80\x04\x95\x00\x00\x00\x80\x00\x00\x00\x00N.", "2,147,483,648 bytes follow"),
        (b"\x80\x02\x82\x01.", "EXT1"),
        (b"\x80\x02N\x51.", "BINPERSID"),
        (b"\x80\x02\x8b\x01\x00\x00\x00\x01.", "LONG4"),
        (pickled({"segments": []}, 2)[:-1], "cut off"),
        (b"\x80\x04]q", "cut off"),
        (b"", "no pickle"),
        (b'{"segments": []}', "no pickle"),
        (b"\x80\x04h\x07.", "broken pickle"),
        (gzip.compress(pickled(Evil()), mtime=0), "STACK_GLOBAL"),
        (b"\x1f\x8bnonsense", "cannot be unpacked"),
        (b"PK\x03\x04nonsense", "cannot be unpacked"),
    ],
)
def test_what_is_no_plain_value_is_refused_before_it_is_built(
    data: bytes, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match=says):
        values_of(data)
    assert "ran" not in capsys.readouterr().out


def nested(depth: int) -> Any:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        [1, 2], "text", {"segments": "text"}, {"segments": [3]}, {"segments": [{"total_size": "1"}]}, {"segments": [{"total_size": -1}]},
        {"segments": [{"total_size": 2**63}]}, {"segments": [{"total_size": 1, "blocks": {}}]},
        {"segments": [], "device_traces": [[{"action": 5}]]},
        {"segments": [], "device_traces": [[{"action": "alloc", "addr": 1, "size": -5}]]},
        {"segments": [], "device_traces": [[{"action": "alloc", "addr": 1, "size": True}]]},
        {"segments": [], "device_traces": 3}, nested(50_000),
    ],
)  # fmt: skip
def test_what_is_no_snapshot_is_refused(value: Any) -> None:
    """Without writing any of it out: it may be nested deeply, or refer to itself."""
    data = pickled(value) if not isinstance(value, list) or value in ([1, 2],) else _flat(value)
    with pytest.raises(ConfigError, match="no memory snapshot"):
        read_snapshot(data)


def _flat(value: Any) -> bytes:
    """A list of lists by hand: pickle's own writer would recurse."""
    depth = 0
    while value:
        (value,), depth = value, depth + 1
    return b"\x80\x04" + b"]" * (depth + 1) + b"a" * depth + b"."


def test_a_list_of_itself_is_refused() -> None:
    value: dict[str, Any] = {}
    value["segments"] = [value]
    with pytest.raises(ConfigError, match="no memory snapshot"):
        read_snapshot(pickled(value))


def test_actions_of_later_releases_are_passed_over_and_said() -> None:
    trace = [{"action": "alloc", "addr": 8, "size": 512}, {"action": "teleport", "addr": "?"}]
    found = read_snapshot(pickled({"segments": [], "device_traces": [trace]}))
    assert len(found.events) == 1 and found.notes == ("1 events 'teleport' of a later release are passed over",)


def test_an_archive_and_an_older_protocol_say_the_same() -> None:
    data = gzip.decompress(sample("torch_2_10"))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("snapshot.pickle", data)
    again = pickle.dumps(pickle.loads(data), 2)
    assert read_snapshot(data) == read_snapshot(packed.getvalue()) == read_snapshot(again)


def test_an_unpacked_file_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_BYTES", 1000)
    with pytest.raises(ConfigError, match="more than"):
        values_of(gzip.compress(bytes(10_000)))
    with pytest.raises(ConfigError, match="more than"):
        values_of(pickled(["x"] * 2000))


def test_the_blocks_of_real_classes_are_named() -> None:
    """All bytes at the peak but a thousandth, which the script that made the sample holds itself."""
    for name in ("mcore_dense", "mcore_full_recompute_tp2", "mcore_moe_ring", "mcore_dense_oom"):
        found = account(read_snapshot(sample(name)))
        assert found.named > 0.999, name
        assert sum(found.parts.values()) == found.nbytes
    dense = account(read_snapshot(sample("mcore_dense")))
    groups = {group.site.tensor: (group.blocks, group.nbytes) for group in dense.groups}
    assert groups["grad buffer of DDP"] == (1, 1_017_698_304) and groups["param buffer of DDP"] == (1, 508_849_152)
    assert groups["main_param"][0] * 2 == groups["exp_avg, exp_avg_sq, or master_param"][0] == 54
    assert groups["main_param"][1] * 2 == groups["exp_avg, exp_avg_sq, or master_param"][1]
    assert (
        max(group.nbytes for group in dense.groups if group.site.tensor == "fp32 logits, then softmax")
        == 2048 * 50_048 * 4
    )


def test_a_line_of_the_users_own_is_named() -> None:
    found = account(read_snapshot(sample("not_ours")))
    first = found.groups[0]
    assert (first.site.part, first.nbytes) == ("not ours", 1946 * MIB)
    assert first.site.where == "/code/my_project/extra_loss.py:100 keep_everything"


def test_pools_and_streams_are_apart() -> None:
    found = account(read_snapshot(sample("streams_and_pools")))
    assert sum(pool.reserved for pool in found.pools) == found.snapshot.reserved
    assert [pool.private for pool in found.pools].count(True) == 1
    assert len({pool.stream for pool in found.pools}) == 2


def test_a_device_of_several() -> None:
    """Without a name the one with the longest trace, and it is said that there are others."""
    segments: list[dict[str, Any]] = [
        {"device": device, "total_size": 512 * (device + 1), "blocks": []} for device in (0, 1)
    ]
    traces = [[], [{"action": "alloc", "addr": 8, "size": 512}]]
    data = pickled({"segments": segments, "device_traces": traces})
    found = read_snapshot(data)
    assert (found.device, found.reserved, found.devices, len(found.events)) == (1, 1024, 2, 1)
    assert any("2 devices; this is 1" in note for note in notes(account(found)))
    other = read_snapshot(data, 0)
    assert (other.reserved, other.events) == (512, ())
    with pytest.raises(ConfigError, match="device 7 is not in it: it has 0, 1"):
        read_snapshot(data, 7)


def test_out_of_memory_in_words() -> None:
    """410 MB asked, 295 MB free on the device, 553 MB in holes of at most 154 MB: together enough."""
    found = account(read_snapshot(sample("mcore_dense_oom")))
    assert found.oom is not None and found.moment == "oom" and found.nbytes == found.snapshot.requested
    assert (found.oom.asked, found.oom.free, found.oom.hole) == (409_993_216, 294_859_571, 153_747_456)
    assert found.oom.unused == 5_932_843_008 - 5_380_337_664 and found.oom.fragmented and not found.oom.missing
    assert sentence(found).startswith(
        "Out of memory: 0.38 GiB asked, 0.27 GiB free on the device"
    ) and "fragmentation" in sentence(found)


@pytest.mark.parametrize(
    ("oom", "says"),
    [
        (OutOfMemory(500, 100, 300, 200, 0), "too much, whatever"),
        (OutOfMemory(500, 100, 600, 200, 0), "fragmentation"),
        (OutOfMemory(500, 600, 0, 0, 0), "another process"),
        (OutOfMemory(500, 100, 600, 550, 0), "another process"),
    ],
)
def test_why_memory_runs_out(oom: OutOfMemory, says: str) -> None:
    assert says in out_of_memory(oom)


def test_steps_by_the_marks_of_the_optimizer() -> None:
    def event(action: str, address: int, size: int, time: int) -> dict[str, Any]:
        return {"action": action, "addr": address, "size": size, "time_us": time, "frames": []}

    trace = [
        event("alloc", 1, 100, 1), event("free_requested", 1, 100, 2), event("alloc", 2, 10 * MIB, 3),
        event("alloc", 3, 300, 11), event("free_requested", 3, 300, 12), event("alloc", 4, 20 * MIB, 13),
    ]  # fmt: skip
    marks = [{"name": "Optimizer.step#FusedAdam.step", "stage": stage, "time_us": time, "device": 0}
             for stage, time in (("START", 4), ("END", 5), ("START", 14), ("END", 15))]  # fmt: skip
    blocks = [{"address": at, "size": size, "requested_size": size, "state": "active_allocated"}
              for at, size in ((2, 10 * MIB), (4, 20 * MIB))]  # fmt: skip
    segment = {"total_size": 32 * MIB, "blocks": blocks, "address": 0}
    found = account(
        read_snapshot(pickled({"segments": [segment], "device_traces": [trace], "external_annotations": marks}))
    )
    assert [(step.peak, step.end) for step in found.steps] == [(10 * MIB, 10 * MIB), (30 * MIB, 30 * MIB)]
    assert [group.nbytes for group in found.grown] == [20 * MIB]


def test_a_trace_without_the_dump_begins_with_nothing_or_with_what_it_frees() -> None:
    """As `timeline --trace` writes it; and one that frees 30 bytes that it did not make."""
    made = {"action": "alloc", "addr": 1, "size": 100, "frames": []}
    older = {"action": "free_requested", "addr": 9, "size": 30, "frames": []}
    starts = [
        account(read_snapshot(pickled({"segments": [], "device_traces": [trace]}))).replay.start
        for trace in ([made], [older, made])
    ]
    assert starts == [0, 30]


def test_what_each_pass_leaves_behind_is_named_without_marks_of_steps() -> None:
    """The real classes, 6 microbatches of which each leaves a tensor of 20 MB in a list of the caller's; a stray tensor is made once."""
    leak, stray = (account(read_snapshot(sample(name))) for name in ("planted_leak", "planted_stray"))
    (group,) = leak.piled
    assert group.site.where.endswith("pretrain_gpt.py:1 forward_step") and group.sizes == (20_000_000,) * 6
    assert stray.piled == ()
    for one in EXPECTED:
        assert account(read_snapshot(sample(one["file"].partition(".")[0]))).piled == ()


def test_a_caller_tells_rows_of_one_function_apart() -> None:
    """The innermost function is `general_gemm` for the output of a linear, its input gradient and the router's logits."""

    def frames(*names: str) -> list[dict[str, Any]]:
        return [
            {"filename": f"/opt/{name.rpartition(':')[0]}", "name": name.rpartition(":")[2], "line": 7}
            for name in names
        ]

    te = "transformer_engine/pytorch"
    gemm = f"{te}/cpp_extensions/gemm.py:general_gemm"
    assert named(frames(gemm, f"{te}/module/layernorm_linear.py:forward")).tensor == "qkv or fc1 output"
    assert named(frames(gemm, f"{te}/module/layernorm_linear.py:backward")).tensor == "input gradient of a linear"
    assert (
        named(frames(gemm, "megatron/core/extensions/transformer_engine.py:te_general_gemm")).tensor == "router logits"
    )
    assert named(frames(gemm)).part == "unknown" and named([]).part == "unknown"
    assert all(rows[-1][0] == "" or all(row[0] for row in rows) for rows in sites().values())


def test_the_command_says_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "snapshot.pickle.gz"
    path.write_bytes(sample("mcore_dense"))
    main(["snapshot", str(path), "--top", "3"])
    lines = capsys.readouterr().out.splitlines()
    assert (
        lines[0]
        == "5.38 GiB alive at the peak: optimizer 2.84, gradients 1.14, loss 0.57, weights 0.47 and activations 0.36."
    )
    assert lines[2].split()[:3] == ["1.90", "54", "optimizer"] and "26 others" in lines[5]
    main(["snapshot", str(path), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found == snapshot_document(account(read_snapshot(sample("mcore_dense"))))
    assert found["peak_requested_bytes"] == 5_782_025_552 and found["whole"] is True and found["oom"] is None


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere.pickle"], "cannot be read"),
        (["{}", "--at", "oom"], "did not run out"),
        (["{}", "--device", "3"], "device 3 is not in it"),
    ],
)
def test_the_command_refuses_in_a_sentence(
    words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "snapshot.pickle.gz"
    path.write_bytes(sample("mcore_dense"))
    with pytest.raises(SystemExit) as refused:
        main(["snapshot", *(word.replace("{}", str(path)) for word in words)])
    assert refused.value.code == 2 and says in capsys.readouterr().err
