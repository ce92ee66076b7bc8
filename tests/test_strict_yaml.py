"""YAML files are measured before anything is made of them, and only regular files are read."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from megatron_memory_estimator.errors import ConfigError
from megatron_memory_estimator.inputs.text_files import read_text, read_yaml


def bomb(line: str) -> str:
    return "a0: &a0 {k: 1}\n" + "".join(
        line.format(at=at, many=", ".join([f"*a{at - 1}"] * 9)) + "\n" for at in range(1, 12)
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (bomb("a{at}: &a{at} {{<<: [{many}]}}"), "holds more than 100000 values"),
        (bomb("a{at}: &a{at} [{many}]"), "holds more than 100000 values"),
        ("a: &a {<<: *a}", "holds more than 100000 values"),
        ("a: &a [*a]", "holds more than 100000 values"),
        ("a: !!int ''", "line 1: '' is not a value of !!int"),
        ("b: 1\na: !!bool foo", "line 2: 'foo' is not a value of !!bool"),
        ("a: !!float ''", "is not a value of !!float"),
        ("a: !!timestamp foo", "the tag '!!timestamp' is not one of !!str"),
        ("a: 2001-99-99", "is not a value of !!timestamp"),
        ("a: !mine x", "the tag '!mine' is not one of"),
        ("a: !!binary x", "the tag '!!binary' is not one of"),
        ("a: " + ":".join(["1"] * 3000), "a number of more than 18 digits"),
        ("a: " + ":".join(["1"] * 3000) + ".5", "is not a value of !!float"),
        ("a: 0x" + "f" * 5000, "a number of more than 18 digits"),
        ("a: " + "9" * 5000, "is not a value of !!int"),
        ("a: 1\na: 2", 'the key "a" appears twice'),
        ("{" * 5000, "is not a usable YAML document"),
        ("a: \0", "is not valid YAML"),
    ],
    ids=lambda value: ascii(value)[:24],
)
def test_yaml_is_measured_before_it_is_made(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=sentence.replace("(", r"\(")) as error:
        read_yaml(str(path))
    assert len(str(error.value)) <= 500


def test_yaml_of_many_keys_is_read(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("".join(f"k{i}: {i}\n" for i in range(5000)) + "base: &b {x: 12_000}\nover: {<<: *b, y: 1:30}\n")
    found = read_yaml(str(path))
    assert len(found) == 5002
    assert found["over"] == {"x": 12_000, "y": 90}


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    fifo, near = str(tmp_path / "fifo.yaml"), str(tmp_path / "socket")
    os.mkfifo(fifo)
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(near)
        for path in (fifo, near, str(tmp_path), os.devnull):
            with pytest.raises(ConfigError, match="is not a regular file"):
                read_text(path)
