"""A terminal of 24 lines: the answer of every command is on it, and no line is wider than it but commands to paste."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

LINES = 24
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
LOG = "[Rank 0] (after 2 iterations) memory (MB) | allocated: 36000.0 | max allocated: 57500.0 | reserved: 1 | max reserved: 1\n"
V3 = "deepseek-ai/DeepSeek-V3 --num-gpus 1024 --tp 2 --pp 16 --ep 64 --gpu H100"
LLAMA = "meta-llama/Llama-3.1-70B --gpu H100"
SCREENS: dict[str, tuple[str, str]] = {
    "estimate": (f"estimate {V3}", "Trains on 1024 H100-80GB only without fragmentation"),
    "no layout": (f"estimate {LLAMA} --num-gpus 16", "Cannot train on 16 H100-80GB"),
    "card": ("estimate Qwen/Qwen3-8B", "Qwen/Qwen3-8B trains on 2 H100-80GB"),
    "check": (f"check {V3}", "Trains on 1024 H100-80GB only without fragmentation"),
    "compare": (
        "compare deepseek-ai/DeepSeek-V3 --num-gpus 256 --gpu H200 --layout tp=4,pp=8,ep=8 --layout tp=2,pp=16,ep=8",
        "tp=4,pp=8,ep=8: Trains on 256 H200-141GB",
    ),
    "advise": (f"advise {LLAMA} --num-gpus 64 --tp 4", "Cannot train on 64 H100-80GB"),
    "explain": (f"explain {LLAMA} --num-gpus 64 --tp 8 --pp 4 --stage 3 --by parameter", "Largest on stage 3"),
    "every tensor": (f"explain {LLAMA} --num-gpus 64 --tp 8 --pp 4 --stage 3", "Largest on stage 3"),
    "timeline": (f"timeline {LLAMA} --num-gpus 64 --tp 8 --pp 4", "Trains on 64 H100-80GB"),
    "log": ("validate --log train.log Qwen/Qwen3-8B --num-gpus 8", "The measured peak is "),
    "plan": ("plan Qwen/Qwen3-8B --num-gpus 8 --gpu H200 --tp 1,2 --cp 1 --pp 1,2", "The fastest: tp "),
}


def screen(words: str, columns: int, folder: Path) -> str:
    """What a terminal of so many columns and 24 lines shows once the command has ended, and the prompt below it."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, columns, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "CI")}
    call = [sys.executable, "-m", "megatron_memory_estimator", *words.split()]
    running = subprocess.Popen(
        call, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL, env={**env, "TERM": "xterm", "NO_COLOR": "1"}, cwd=folder
    )  # fmt: skip
    os.close(theirs)
    printed = b""
    try:
        while part := os.read(ours, 65536):
            printed += part
    except OSError:  # the other side has ended
        pass
    running.wait()
    os.close(ours)
    text = ESCAPES.sub("", printed.decode()).replace("\r", "")
    rows = [line[at : at + columns] for line in text.splitlines() for at in range(0, max(len(line), 1), columns)]
    long = [line for line in text.splitlines() if len(line.rstrip()) > columns and "megatron-memory " not in line]
    assert not long or words.startswith("check")  # one line, whatever the terminal: for logs
    return "\n".join(rows[1 - LINES :])


@pytest.mark.parametrize("name", SCREENS)
@pytest.mark.parametrize("columns", [80, 100, 200])
def test_the_answer_is_on_the_screen(name: str, columns: int, tmp_path: Path) -> None:
    words, answer = SCREENS[name]
    (tmp_path / "train.log").write_text(LOG)
    shown = screen(words, columns, tmp_path)
    assert answer in " ".join(shown.split()) and "\u2026" not in shown


@pytest.mark.parametrize("name", ["no layout", "check", "explain", "timeline", "log", "plan"])
def test_so_it_is_in_a_narrow_one(name: str, tmp_path: Path) -> None:
    words, answer = SCREENS[name]
    (tmp_path / "train.log").write_text(LOG)
    assert answer in " ".join(screen(words, 60, tmp_path).split())
