"""What README shows, at every width: no number is cut, and no line is wider than the terminal."""

from __future__ import annotations

import re
import shlex

import pytest

from megatron_memory_estimator.cli import main

from .helpers import ROOT, long

COMMANDS = [
    shlex.split(command.split(" | ")[0])[1:]
    for command in re.findall(r"<!-- run: (.+?) -->", (ROOT / "README.md").read_text())
]
QUICK = [command for command in COMMANDS if command[0] != "plan"]
NUMBER = re.compile(r"\d[\d,]*\.?\d*")


def lines_at(
    width: int, command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    main(command)
    return capsys.readouterr().out.splitlines()


def is_whole(
    width: int, command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines are within the terminal, nothing is elided, and numbers in GiB are those of the widest terminal."""
    lines = lines_at(width, command, capsys, monkeypatch)
    assert not [line for line in lines if "\u2026" in line or len(line) > width]
    wide = "\n".join(lines_at(1000, command, capsys, monkeypatch))
    known = set(NUMBER.findall(wide))
    decimals = [number for line in lines for number in NUMBER.findall(line) if "." in number.rstrip(".")]
    cut = [number for number in decimals if number.rstrip(".") not in known and number not in wide]
    assert not cut


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
@pytest.mark.parametrize("command", QUICK, ids=lambda command: str(command[0]))
def test_readme_at_every_width(
    width: int, command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    is_whole(width, command, capsys, monkeypatch)


@long
@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
@pytest.mark.parametrize("command", [one for one in COMMANDS if one not in QUICK], ids=lambda command: str(command[0]))
def test_plans_of_readme_at_every_width(
    width: int, command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    is_whole(width, command, capsys, monkeypatch)


def test_readme_shows_commands() -> None:
    assert {command[0] for command in COMMANDS} >= {"estimate", "plan", "explain"}
