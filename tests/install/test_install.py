"""The package as a stranger installs it: on every Python that is here, each extra alone, from the sdist, with pipx and uv."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..helpers import ROOT

VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
ASK = ("estimate", "Qwen/Qwen3-30B-A3B", "--num-gpus", "32", "--pp", "2", "--ep", "16", "--json")
LARGEST = 60 * 10**6
"""Bytes of everything that a plain installation brings, pip apart."""


def run(*words: object, check: bool = True, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A program in an environment that knows nothing of the checkout."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [*map(str, words)], capture_output=True, text=True, check=False, cwd=cwd, env=env, timeout=900
    )
    assert not check or done.returncode == 0, f"{words}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done


def interpreter(version: str) -> str | None:
    """A Python of a version that starts, from the path or from pyenv; None where there is none."""
    found = [shutil.which(f"python{version}"), *map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))]
    for one in filter(None, found):
        if run(one, "-c", "import sys; print('%d.%d' % sys.version_info[:2])", check=False).stdout.strip() == version:
            return one
    return None


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel and the sdist of the files that git knows, built twice with the time of the last commit: the same bytes."""
    seconds = run("git", "-C", ROOT, "log", "-1", "--format=%ct").stdout.strip()
    digests, made = [], {}
    for number in (1, 2):
        folder = tmp_path_factory.mktemp(f"build{number}")
        for name in run("git", "-C", ROOT, "ls-files", "-z").stdout.split("\0"):
            if name and (ROOT / name).is_file():
                (folder / "src" / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / "src" / name)
        (folder / "src" / ".gitignore").touch()
        run(
            "env",
            f"SOURCE_DATE_EPOCH={seconds}",
            sys.executable,
            "-m",
            "build",
            "--quiet",
            "--outdir",
            folder / "dist",
            folder / "src",
        )
        files = sorted((folder / "dist").iterdir())
        digests.append([hashlib.sha256(file.read_bytes()).hexdigest() for file in files])
        made = {"wheel" if file.suffix == ".whl" else "sdist": file for file in files}
    assert digests[0] == digests[1] and len(digests[0]) == 2
    return made


def environment(python: str, folder: Path, *what: object) -> Path:
    """A new environment with packages installed; its folder of programs."""
    run(python, "-m", "venv", folder)
    run(
        folder / "bin" / "python",
        "-m",
        "pip",
        "install",
        "-q",
        "--disable-pip-version-check",
        "-c",
        ROOT / "constraints.txt",
        *what,
    )
    return folder / "bin"


@pytest.fixture(scope="session")
def plain(built: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(sys.executable, tmp_path_factory.mktemp("plain") / "venv", built["wheel"])


def test_both_hold_what_they_should(built: dict[str, Path]) -> None:
    wheel = set(zipfile.ZipFile(built["wheel"]).namelist())
    sources = {f"megatron_memory_estimator/{name}" for name in known("src/megatron_memory_estimator")}
    assert {name for name in wheel if ".dist-info/" not in name} == sources
    assert "megatron_memory_estimator/py.typed" in wheel and any(name.endswith("licenses/LICENSE") for name in wheel)
    with tarfile.open(built["sdist"]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for folder in ("src", "tests", "docs", "examples", "scripts", "skills"):
        assert {f"{folder}/{name}" for name in known(folder) if not name.startswith("images/")} <= names, folder
    assert {"README.md", "LICENSE", "CHANGELOG.md", "Makefile", "constraints.txt", "pyproject.toml"} <= names


def known(folder: str) -> Iterator[str]:
    """Files of a folder that git knows."""
    for name in run("git", "-C", ROOT, "ls-files", "-z", folder).stdout.split("\0"):
        if name and (ROOT / name).is_file():
            yield name.removeprefix(f"{folder}/")


def test_it_is_small_and_light(plain: Path) -> None:
    (packages,) = plain.parent.glob("lib/python3*/site-packages")
    others = ("pip", "setuptools", "pkg_resources", "_distutils_hack")
    size = sum(
        file.stat().st_size
        for top in packages.iterdir()
        if not top.name.startswith(others)
        for file in (top.rglob("*") if top.is_dir() else [top])
        if file.is_file()
    )
    print(f"installed: {size / 1e6:.1f} MB")
    assert size < LARGEST
    loaded = run(plain / "python", "-c", "import sys, megatron_memory_estimator; print(*sys.modules)").stdout.split()
    assert not {"numpy", "torch", "transformers", "rich", "yaml", "click"} & set(loaded)


PLAN = (
    "plan", "deepseek-ai/DeepSeek-V3", "--num-gpus", "1024", "--gpu", "H100", "--global-batch-size", "2048", "--pp", "16", "--cp", "4",
    "--tp", "1", "--ep", "8", "--recompute", "none", "--micro-batch-size", "1", "--json",
)  # fmt: skip
"""A plan whose generated splits are told apart by sums of floats; 3.11 and 3.12 once found different ones."""
HERE = {version: python for version in VERSIONS if (python := interpreter(version))}
"""Pythons of this machine. 3.14 runs in the page's worker (tests/web) wherever it is not here."""


def test_this_python_is_one_of_them() -> None:
    print(f"Python {', '.join(HERE)}; not here: {', '.join(set(VERSIONS) - set(HERE)) or 'none'}")
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in HERE


@pytest.mark.parametrize("version", HERE)
def test_every_python_gives_the_same_answer(version: str, built: dict[str, Path], plain: Path, tmp_path: Path) -> None:
    programs = environment(HERE[version], tmp_path / "venv", built["wheel"])
    tool = programs / "megatron-memory"
    said = json.loads(run(tool, *ASK, cwd=tmp_path).stdout)
    assert said == json.loads(run(plain / "megatron-memory", *ASK, cwd=tmp_path).stdout)
    assert (
        run(tool, "--version")
        .stdout.strip()
        .endswith(run(programs / "pip", "show", "megatron-memory-estimator").stdout.split("Version: ")[1].split()[0])
    )
    assert json.loads(run(tool, *PLAN, cwd=tmp_path).stdout) == json.loads(
        run(plain / "megatron-memory", *PLAN, cwd=tmp_path).stdout
    ), "sums of floats differ since 3.12"
    for words in (
        ("explain", "Qwen3-8B", "--num-gpus", "8"),
        ("advise", "Qwen3-8B", "--num-gpus", "8"),
        ("gpus",),
        ("models", "qwen3"),
    ):
        assert run(tool, *words, cwd=tmp_path).stdout
    refused = run(tool, "estimate", "Qwen/Qwen3-9B", "--num-gpus", "8", "--tp", "3", check=False)
    assert refused.returncode == 2 and "Traceback" not in refused.stderr


EXTRAS = {
    "plan": "import numpy",
    "mcp": "import megatron_memory_estimator.mcp_server",
    "web": "import megatron_memory_estimator.web.app",
    "plot": "from megatron_memory_estimator import *; estimate(TrainingJob.from_hf('Qwen/Qwen3-8B', 8)).plot('a.png')",
    "notebook": "from megatron_memory_estimator import *; print(estimate(TrainingJob.from_hf('Qwen/Qwen3-8B', 8)).to_frame())",
}


@pytest.mark.parametrize("extra", EXTRAS)
def test_each_extra_alone_is_enough(extra: str, built: dict[str, Path], plain: Path, tmp_path: Path) -> None:
    assert run(plain / "python", "-c", EXTRAS[extra], check=False, cwd=tmp_path).returncode, (
        "it works without the extra"
    )
    programs = environment(sys.executable, tmp_path / "venv", f"{built['wheel']}[{extra}]")
    run(programs / "python", "-c", EXTRAS[extra], cwd=tmp_path)
    run(programs / "python", "-m", "pip", "check")
    if extra == "plan":
        run(
            programs / "megatron-memory",
            "plan",
            "Qwen/Qwen3-8B",
            "--num-gpus",
            "8",
            "--global-batch-size",
            "64",
            cwd=tmp_path,
        )


def test_the_sdist_installs_as_the_wheel(built: dict[str, Path], plain: Path, tmp_path: Path) -> None:
    programs = environment(sys.executable, tmp_path / "venv", built["sdist"])
    files = [run(one / "pip", "show", "-f", "megatron-memory-estimator").stdout for one in (programs, plain)]
    names = [
        {name for name in text.split("Files:")[1].split() if "__pycache__" not in name and "direct_url" not in name}
        for text in files
    ]
    assert names[0] == names[1]


def test_types_are_seen_by_a_users_checker(built: dict[str, Path], tmp_path: Path) -> None:
    programs = environment(sys.executable, tmp_path / "venv", built["wheel"], "mypy")
    program = tmp_path / "mine.py"
    program.write_text(
        "from megatron_memory_estimator import TrainingJob, estimate\n"
        "found = estimate(TrainingJob.from_hf('Qwen/Qwen3-8B', 8, tp=2))\n"
        "peak: int = found.peak_stage.peak_allocated_bytes\n"
    )
    run(programs / "mypy", "--strict", program, cwd=tmp_path)
    program.write_text(program.read_text().replace("tp=2", "tpp=2"))
    wrong = run(programs / "mypy", "--strict", program, check=False, cwd=tmp_path)
    assert wrong.returncode == 1 and re.search(r'"tpp"', wrong.stdout)


@pytest.mark.parametrize("runner", ["pipx", "uv"])
def test_it_runs_without_being_installed(runner: str, built: dict[str, Path], tmp_path: Path) -> None:
    programs = environment(sys.executable, tmp_path / "venv", runner)
    words = {
        "pipx": (programs / "pipx", "run", "--spec", built["wheel"], "megatron-memory"),
        "uv": (programs / "uv", "tool", "run", "--from", built["wheel"], "megatron-memory"),
    }[runner]
    assert run(*words, "estimate", "Qwen/Qwen3-8B", "--num-gpus", "8", "--tp", "2", cwd=tmp_path).stdout.startswith(
        "Trains on 8 H100-80GB, "
    )
