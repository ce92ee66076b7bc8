"""Whole-process time, memory, installed size and the answer of other estimators, each beside ours in the same run: `make bench-peers`.

Each peer gets an environment of its own under build/peers. Those that need torch, or gigabytes, are asked only where they are named
(PEERS="megatron-core deepspeed") or with PEERS=all. With --record the results are written to tests/facts/peers.jsonl, from which
docs/explanation/peers.md is made.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / "build" / "peers"
CASES: dict[str, dict[str, Any]] = json.loads((ROOT / "scripts" / "peers" / "cases.json").read_text())
FACTS = ROOT / "tests" / "facts" / "peers.jsonl"
RUNS = 5


class Peer(NamedTuple):
    """A peer: what pip installs, whether that is heavy, the Python that it needs, and a note about its installation."""

    requirements: tuple[str, ...]
    heavy: bool = False
    python: str = ""
    note: str = ""


PEERS = {
    "llm-analysis": Peer(("llm-analysis==0.2.2",)),
    "llm-flops": Peer(("llm-flops==0.0.1",)),
    "vramcalc": Peer(("vramcalc==0.1.2",)),
    "mbridge": Peer(("--no-deps", "mbridge==0.15.1"), note="without its dependencies (torch, megatron-core)"),
    "hf-mem": Peer(("hf-mem==0.5.6",)),
    "accelerate": Peer(("accelerate==1.15.0", "transformers"), heavy=True),
    "deepspeed": Peer(("deepspeed==0.19.8",), heavy=True),
    "megatron-core": Peer(("megatron-core[training]==0.19.2",), heavy=True, python="3.12"),
    "megatron-bridge": Peer(
        ("--no-deps", "megatron-bridge==0.6.2"),
        heavy=True,
        note="without its dependencies (pip cannot build them without torch)",
    ),
}


class Run(NamedTuple):
    """One run of a program: seconds, the largest resident memory in MiB of it and its children, and what it printed."""

    seconds: float
    resident: float
    out: str


def once(command: list[str]) -> Run:
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env)
    assert process.stdout is not None
    out = process.stdout.read()
    _, _, usage = os.wait4(process.pid, 0)
    return Run(time.perf_counter() - start, usage.ru_maxrss / 1024, out)


def environment(name: str, requirements: tuple[str, ...], python: str = sys.executable) -> Path:
    """The environment of a peer, made where there is none; its Python."""
    folder = HOME / name
    if not (folder / "bin" / "python").exists():
        print(f"installing {name}: {' '.join(requirements)}", flush=True)
        subprocess.run([python, "-m", "venv", str(folder)], check=True)
        try:
            pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
            subprocess.run([*pip, *requirements], check=True)
        except (subprocess.CalledProcessError, KeyboardInterrupt):
            shutil.rmtree(folder, ignore_errors=True)
            raise
    return folder / "bin" / "python"


def installed(python: Path) -> float:
    """Megabytes (10^6 bytes) of packages, without pip and setuptools."""
    (packages,) = python.parent.parent.glob("lib/python3*/site-packages")
    tops = [
        top
        for top in packages.iterdir()
        if not top.name.startswith(("pip", "setuptools", "pkg_resources", "_distutils"))
    ]
    return sum(file.lstat().st_size for top in tops for file in [top, *top.rglob("*")] if not file.is_dir()) / 1e6


def flags(record: dict[str, Any]) -> list[str]:
    """Our command for a measured run: its Megatron-LM arguments as they are recorded."""
    own = [word for name, value in record["settings"].items() for word in (f"--{name.replace('_', '-')}", str(value))]
    words = []
    for name, value in record["args"].items():
        words += [f"--{name.replace('_', '-')}"] if value is True else [f"--{name.replace('_', '-')}", str(value)]
    return ["--num-gpus", str(record["num_gpus"]), "--gpu", record["gpu"], *own, "--", *words]


@cache
def records() -> dict[str, dict[str, Any]]:
    lines = (ROOT / "src" / "megatron_memory_estimator" / "validation" / "runs.jsonl").read_text().splitlines()
    return {record["id"]: record for record in map(json.loads, lines)}


def measured_of(case: dict[str, Any]) -> float | None:
    """GiB that torch had allocated at most, on the rank that was measured or on the fullest of all."""
    if "run" not in case:
        return None
    found = records()[case["run"]]["measured"]
    return max(found.get("per_rank_max_allocated_bytes") or [found["max_allocated_bytes"]]) / 2**30


def ours(tool: Path, case: dict[str, Any]) -> list[str]:
    return [str(tool), "estimate", "--json", *(case["ours"] if "ours" in case else flags(records()[case["run"]]))]


def our_answer(out: str, case: dict[str, Any]) -> float:
    """The figure of the rank that was measured: the last one where only that was."""
    stages = [stage["peak_allocated_bytes"] for stage in json.loads(out)["stages"]]
    last = "run" in case and records()[case["run"]]["rank"] == "last"
    return float(stages[-1] if last else max(stages)) / 2**30


def compared(name: str, peer: Peer, python: Path, tool: Path) -> list[dict[str, Any]]:
    """The answers of a peer, its time beside ours, in turn."""
    size, found = installed(python), []
    version = json.loads(
        subprocess.run(
            [str(python), "-c", f"import json, importlib.metadata as m; print(json.dumps(m.version({name!r})))"],
            capture_output=True, text=True, check=True,
        ).stdout
    )  # fmt: skip
    program = ROOT / "scripts" / "peers" / f"ask_{name.replace('-', '_')}.py"
    for key, case in CASES.items():
        command = [str(python), str(program), json.dumps(case)]
        own_command = ours(tool, case)
        once(command), once(own_command)
        pairs = [(once(command), once(own_command)) for _ in range(RUNS)]
        said = json.loads(pairs[-1][0].out.splitlines()[-1])
        found.append({
            "peer": name, "version": version, "note": peer.note, "installed_mb": round(size, 1), "case": key, **said,
            "measured_gib": measured_of(case), "seconds": round(statistics.median(pair[0].seconds for pair in pairs), 3),
            "resident_mib": round(max(pair[0].resident for pair in pairs), 1),
            "times_ours": round(statistics.median(theirs.seconds / our.seconds for theirs, our in pairs), 2),
        })  # fmt: skip
        print(line(found[-1]), flush=True)
    return found


def own(tool: Path) -> list[dict[str, Any]]:
    """Our answers."""
    found = []
    for key, case in CASES.items():
        command = ours(tool, case)
        runs = [once(command) for _ in range(RUNS + 1)][1:]
        found.append({
            "peer": "megatron-memory-estimator", "version": "this one", "note": "", "case": key, "why": "", "times_ours": 1.0,
            "installed_mb": round(installed(tool.with_name("python")), 1), "gib": our_answer(runs[-1].out, case),
            "of": "one GPU, every stage by itself", "measured_gib": measured_of(case),
            "seconds": round(statistics.median(run.seconds for run in runs), 3),
            "resident_mib": round(max(run.resident for run in runs), 1),
        })  # fmt: skip
        print(line(found[-1]), flush=True)
    return found


def line(found: dict[str, Any]) -> str:
    """A result as it is printed."""
    gib = f"{found['gib']:9.2f} GiB" if found["gib"] is not None else f"        - ({found['why'][:60]})"
    error = f"{found['gib'] / found['measured_gib'] - 1:+8.1%}" if found["gib"] and found["measured_gib"] else " " * 8
    return (
        f"{found['peer']:26} {found['case']:21} {gib} {error}  {found['seconds']:6.2f} s, {found['times_ours']:6.2f} times ours, "
        f"{found['resident_mib']:6.0f} MiB, installed {found['installed_mb']:,.0f} MB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peers", nargs="*", help="names, or all; default: those without torch")
    parser.add_argument(
        "--record", action="store_true", help=f"write the answers of these peers into {FACTS.relative_to(ROOT)}"
    )
    options = parser.parse_args()
    names = [name for name, peer in PEERS.items() if not peer.heavy] if not options.peers else options.peers
    names = list(PEERS) if names == ["all"] else names
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        parser.error(f"no such peer: {', '.join(unknown)}; they are {', '.join(PEERS)}")
    tool = environment("ours", (str(ROOT),)).with_name("megatron-memory")
    found = own(tool)
    for name in names:
        peer = PEERS[name]
        python = shutil.which(f"python{peer.python}") if peer.python else sys.executable
        if python is None:
            print(f"{name} needs Python {peer.python}, which is not here")
            continue
        try:
            found += compared(name, peer, environment(name, peer.requirements, python), tool)
        except subprocess.CalledProcessError as error:
            print(f"{name} was not installed: {' '.join(map(str, error.cmd))} ended with {error.returncode}")
    if options.record:
        asked = {one["peer"] for one in found}
        kept = [one for one in map(json.loads, FACTS.read_text().splitlines()) if one["peer"] not in asked]
        FACTS.write_text("".join(json.dumps(one) + "\n" for one in (*found, *kept)))


if __name__ == "__main__":
    main()
