"""The page as a folder: what is in it, what runs from it alone, and what is refused without a trace."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import stat
import subprocess
import sys
import tarfile
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

import pytest

from megatron_memory_estimator import ConfigError, __version__
from megatron_memory_estimator.cli import main
from megatron_memory_estimator.service import page
from megatron_memory_estimator.service.answers import TOOLS, answered
from megatron_memory_estimator.web import static
from megatron_memory_estimator.web.static import (
    ALONE,
    FILES,
    FIRST,
    LISTED,
    SERVED,
    Release,
    archived,
    compiled,
    contents,
    files_of,
    pyodide,
    site,
    wheel,
    wheel_name,
    write_site,
)

from .helpers import ROOT

NUMPY = b"a wheel of NumPy"
LOCK = {"packages": {"numpy": {"file_name": "numpy-2-wasm32.whl", "sha256": hashlib.sha256(NUMPY).hexdigest()}}}
PARTS = {
    "pyodide.mjs": b"throw new Error('no Pyodide');",
    "pyodide.asm.mjs": b"export default 1;",
    "pyodide.asm.wasm": b"\0asm",
    "python_stdlib.zip": archived({"this.py": b"s = 1\n"}),
    "pyodide-lock.json": json.dumps(LOCK).encode(),
}


def tarball() -> bytes:
    """A tarball as npm makes it, of small files."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz") as archive:
        for name, content in {**PARTS, "README.md": b"more"}.items():
            one = tarfile.TarInfo(f"package/{name}")
            one.size = len(content)
            archive.addfile(one, io.BytesIO(content))
    return written.getvalue()


TARBALL = tarball()
INTEGRITY = "sha512-" + base64.b64encode(hashlib.sha512(TARBALL).digest()).decode()
RELEASE = Release("pyodide@1.2.3", INTEGRITY, {name: hashlib.sha256(one).hexdigest() for name, one in PARTS.items()})


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, and no programs to run."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path / "cache" / "megatron-memory-estimator"


def npm(tmp_path: Path, script: str) -> None:
    """A program named npm, which notes that it was called."""
    (tmp_path / "bin").mkdir(exist_ok=True)
    program = tmp_path / "bin" / "npm"
    program.write_text(f"#!/bin/sh\necho called >> {tmp_path}/calls\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def given(tmp_path: Path) -> str:
    """The tarball as a file."""
    (tmp_path / "py.tgz").write_bytes(TARBALL)
    return str(tmp_path / "py.tgz")


def test_a_site_holds_the_page_the_package_and_pyodide_with_checksums(tmp_path: Path) -> None:
    write_site(str(tmp_path / "deep" / "site"), site(given(tmp_path), release=RELEASE))
    folder = tmp_path / "deep" / "site"
    listed = json.loads((folder / LISTED).read_text())
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert found == {LISTED, *listed["files"]}
    assert {"index.html", "page.js", "page.css", "worker.js", wheel_name()} < found
    assert {name for name in found if name.startswith("pyodide/")} == {
        f"pyodide/{name.replace('.mjs', '.js')}" for name in PARTS
    }
    for name, checksum in listed["files"].items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == checksum
    assert (listed["version"], listed["wheel"], listed["numpy"]) == (__version__, wheel_name(), None)
    assert listed["pyodide"] == {"package": "pyodide@1.2.3", "licence": "MPL-2.0", "integrity": INTEGRITY}
    assert not listed["compiled"], "Node.js is not on the path here"
    assert os.listdir(tmp_path / "deep") == ["site"], "nothing is left beside it"
    assert folder.stat().st_mode & 0o777 == 0o755 & ~os.umask(os.umask(0)), "a file server may read it"


def test_the_page_of_a_site_says_that_a_worker_answers_it(tmp_path: Path) -> None:
    served = (ROOT / "src/megatron_memory_estimator/web/page/index.html").read_text()
    alone = site(given(tmp_path), release=RELEASE)["index.html"].decode()
    assert SERVED in served and ALONE in alone
    assert alone.replace('content="worker"', 'content="http"') == served


def test_a_site_holds_the_documents_of_the_run_that_it_opens_with(tmp_path: Path) -> None:
    files = site(given(tmp_path), release=RELEASE)
    held = json.loads(files["first.json"])
    example = re.search(r"EXAMPLE: Run = (\{.*\});", (ROOT / "web/src/address.ts").read_text())
    assert example and json.loads(re.sub(r"(\w+):", r'"\1":', example[1])) == held["run"] == FIRST
    for one in held["documents"]:
        asked = {**FIRST, **one["arguments"], "detail": "full"}
        found = answered({"tool": one["tool"], "arguments": asked, "folder": None, "seconds": 60, "hub": False})
        assert json.loads(json.dumps(found["answer"])) == one["answer"], one["tool"]
    assert {one["tool"] for one in held["documents"]} == {"estimate", "lanes", "moment"} and len(
        files["first.json"]
    ) < 60_000
    assert files[".nojekyll"] == b"" and b"sdk: static" in files["README.md"]


def test_words_of_a_site_link_to_its_documentation(tmp_path: Path) -> None:
    built = tmp_path / "docs"
    for name in ("index.html", "reference/glossary.html", ".doctrees/index.doctree"):
        (built / name).parent.mkdir(parents=True, exist_ok=True)
        (built / name).write_text(name)
    files = site(given(tmp_path), release=RELEASE, docs=str(built))
    assert b'<meta name="docs" content="docs/" />' in files["index.html"]
    assert {name for name in files if name.startswith("docs/")} == {"docs/index.html", "docs/reference/glossary.html"}
    with pytest.raises(ConfigError, match="is not the built documentation; `make docs` writes it"):
        site(given(tmp_path), release=RELEASE, docs=str(tmp_path))


def test_a_site_is_the_same_each_time(tmp_path: Path) -> None:
    assert site(given(tmp_path), release=RELEASE) == site(given(tmp_path), release=RELEASE)


def test_numpy_of_pyodide_is_taken_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "n.whl"
    path.write_bytes(NUMPY)
    files = site(given(tmp_path), str(path), RELEASE)
    assert files["pyodide/numpy-2-wasm32.whl"] == NUMPY
    assert json.loads(files[LISTED])["numpy"] == "numpy-2-wasm32.whl"
    path.write_bytes(NUMPY + b"!")
    with pytest.raises(ConfigError, match=r"is not numpy-2-wasm32.whl of Pyodide's distribution: its sha256 differs"):
        site(given(tmp_path), str(path), RELEASE)
    with pytest.raises(ConfigError, match=r"is not a file; Pyodide's distribution has it as numpy-2-wasm32.whl"):
        site(given(tmp_path), str(tmp_path / "none"), RELEASE)


def test_what_is_not_the_pinned_release_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.tgz"
    other.write_bytes(TARBALL + b"\0")
    with pytest.raises(ConfigError, match=r"is not the tarball of pyodide@1.2.3: its sha512 differs"):
        pyodide(str(other), RELEASE)
    folder = tmp_path / "folder"
    folder.mkdir()
    for name, content in PARTS.items():
        (folder / name).write_bytes(content)
    assert pyodide(str(folder), RELEASE) == PARTS
    (folder / "pyodide.asm.wasm").write_bytes(b"\0asm!")
    with pytest.raises(ConfigError, match=r"pyodide.asm.wasm\S* is not that of pyodide@1.2.3: its sha256 differs"):
        pyodide(str(folder), RELEASE)
    (folder / "pyodide.asm.wasm").unlink()
    with pytest.raises(ConfigError, match=r"has no pyodide.asm.wasm, which pyodide@1.2.3 has"):
        pyodide(str(folder), RELEASE)
    with pytest.raises(ConfigError, match="neither a folder nor a tarball"):
        pyodide(str(tmp_path / "none"), RELEASE)


def test_npm_fetches_it_once(tmp_path: Path, own_cache: Path) -> None:
    npm(tmp_path, f'test "$1 $2" = "pack pyodide@1.2.3" && /bin/cp {given(tmp_path)} pyodide-1.2.3.tgz')
    assert pyodide(None, RELEASE) == PARTS == pyodide(None, RELEASE)
    assert (tmp_path / "calls").read_text() == "called\n"
    (kept,) = own_cache.iterdir()
    kept.write_bytes(b"half of it")
    assert pyodide(None, RELEASE) == PARTS
    assert (tmp_path / "calls").read_text() == "called\n" * 2, "what is kept is checked too"


def test_without_npm_or_a_network_the_sentence_has_the_way_out(tmp_path: Path, own_cache: Path) -> None:
    way = r"give a folder or tarball of the npm package pyodide@\S+ with --pyodide"
    with pytest.raises(ConfigError, match=rf"npm fetches pyodide@1.2.3 and is not installed; install it, or {way}"):
        pyodide(None, RELEASE)
    npm(tmp_path, "echo 'npm error code ENOTFOUND' >&2; echo 'npm error more' >&2; exit 1")
    with pytest.raises(ConfigError, match=rf"npm could not fetch pyodide@1.2.3: .*ENOTFOUND.*; {way}"):
        pyodide(None, RELEASE)
    npm(tmp_path, "echo other > pyodide-1.2.3.tgz")
    with pytest.raises(ConfigError, match=r"its sha512 differs"):
        pyodide(None, RELEASE)
    assert not own_cache.exists(), "nothing is kept that is not what is pinned"


def test_an_older_site_is_replaced_and_nothing_else_is(tmp_path: Path) -> None:
    out = tmp_path / "site"
    files = site(given(tmp_path), release=RELEASE)
    out.mkdir()
    write_site(str(out), files)
    (out / "page.js").write_text("older")
    write_site(str(out), files)
    assert (out / "page.js").read_bytes() == files["page.js"]
    (out / "CNAME").write_text("mine")
    with pytest.raises(ConfigError, match=r"has files that are not of a site, such as .?CNAME"):
        write_site(str(out), files)
    assert (out / "CNAME").read_text() == "mine" and len(list(out.iterdir())) > 5
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "engine.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"such as .?engine.json"):
        write_site(str(tmp_path / "mine"), files)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match="is a file; give a folder"):
        write_site(str(tmp_path / "file"), files)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    (out / "CNAME").unlink()
    (out / "linked").symlink_to(tmp_path, target_is_directory=True)
    with pytest.raises(ConfigError, match=r"such as .?linked"):
        write_site(str(out), files)
    with pytest.raises(ConfigError, match="--out is empty"):
        write_site("", files)


def test_a_folder_with_other_files_is_refused_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").write_text("mine")
    monkeypatch.setattr(static, "site", None)
    with pytest.raises(SystemExit) as ended:
        main(["site", "--out", str(tmp_path)])
    assert ended.value.code == 2


def test_what_fails_while_writing_leaves_the_old_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "site"
    files = site(given(tmp_path), release=RELEASE)
    write_site(str(out), files)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(ConfigError, match="cannot be written: No space"):
        write_site(str(out), files)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_the_command_refuses_with_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["site", "--out", str(tmp_path / "site"), "--pyodide", given(tmp_path)])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"is not the tarball of {static.PACKAGE}" in line
    assert not (tmp_path / "site").exists()


def test_the_pins_are_whole() -> None:
    assert base64.b64decode(static.INTEGRITY.removeprefix("sha512-"), validate=True).__len__() == 64
    assert all(len(bytes.fromhex(checksum)) == 32 for checksum in FILES.values()) and len(FILES) == 5


QWEN = {"model": "Qwen/Qwen3-8B", "num_gpus": 8, "detail": "full"}
ALONE_IN_A_FOLDER = """
import json, sys
sys.path[:] = [entry for entry in sys.path if "site-packages" not in entry] + [sys.argv[1]]
from megatron_memory_estimator.service import cases, exports, page, searches
assert page.__file__.startswith(sys.argv[1]), page.__file__
print(page.asked(sys.stdin.read(), print))
"""


@pytest.mark.parametrize("compile_it", [False, True])
def test_the_package_of_a_site_runs_with_python_alone(tmp_path: Path, compile_it: bool) -> None:
    """Sources, and files compiled by the Python that runs them, as the browser's Python compiles them for itself."""
    files = contents() if not compile_it else files_of(compiled(archived(contents())))
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    assert compile_it == (not list(tmp_path.rglob("*.py")))
    report = {"tool": "export", "arguments": {**QWEN, "what": "report"}}
    for request in ({"tool": "estimate", "arguments": QWEN}, {"tool": "advise", "arguments": QWEN}, report):
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", ALONE_IN_A_FOLDER, str(tmp_path)],
            input=json.dumps(request), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        here = answered({**request, "folder": None, "seconds": 60, "hub": False})
        assert json.loads(done.stdout) == json.loads(json.dumps(here)) and "answer" in here


REPORT = ("index.html", "page.css", "page.js")
"""What `estimate --html` and the page's own export of a report are made of."""


def test_the_wheel_is_small_and_whole() -> None:
    made = wheel(contents())
    assert made == wheel(contents()), "the same bytes each time"
    files = files_of(made)
    package = {name.split("/", 1)[1] for name in files if name.startswith("megatron_memory_estimator/")}
    assert not [name for name in package if name.startswith("cli/") or name.endswith((".jsonl", ".pyc"))]
    assert {name for name in package if name.startswith("web/")} == {f"web/page/{name}" for name in REPORT}
    assert {
        "service/tools.py",
        "service/arguments.json",
        "report/quantities.csv",
        "rules.csv",
    } < package and "mcp_server.py" not in package
    assert "yaml/__init__.py" in files and any(name.endswith("LICENSE") and "yaml" in name.lower() for name in files)
    info = f"megatron_memory_estimator-{__version__}.dist-info"
    assert HeaderParser().parsestr(files[f"{info}/METADATA"].decode())["Version"] == __version__
    record = [line.split(",") for line in files[f"{info}/RECORD"].decode().splitlines()]
    assert [name for name, *_ in record] == list(files)
    for name, checksum, size in record[:-1]:
        digest = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=").decode()
        assert (checksum, size) == (f"sha256={digest}", str(len(files[name]))), name
    assert len(made) < 1_500_000


def test_requests_of_the_page_are_json_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    found = json.loads(page.asked(json.dumps({"tool": "estimate", "arguments": QWEN}), told.append))
    assert found["answer"]["schema"] == "megatron-memory-estimate/1"
    assert json.loads(page.asked('{"tool": "../plan", "arguments": {}}', told.append)) == {
        "error": f"the tools are {', '.join(TOOLS)}"
    }
    wrong = json.dumps({"tool": "estimate", "arguments": {**QWEN, "settings": {"tp": 3}}})
    assert "is not divisible by" in json.loads(page.asked(wrong, told.append))["error"]

    def fails(error: Exception) -> dict[str, Any]:
        def answer(request: Any, progress: Any = None) -> Any:
            progress({"share": 0.5})
            raise error

        monkeypatch.setattr(page, "answered", answer)
        sentence: dict[str, Any] = json.loads(
            page.asked(json.dumps({"tool": "estimate", "arguments": QWEN}), told.append)
        )
        return sentence

    text = fails(KeyError("a secret"))["error"]
    assert text.startswith("an error of the estimator itself, KeyError in ") and "secret" not in text
    assert [json.loads(one) for one in told] == [{"share": 0.5}]
