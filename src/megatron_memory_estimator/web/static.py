"""The page as a folder for any file host: it, the package as a wheel, and Pyodide, which runs the package in the browser.

Python files compiled for the browser's Python, by that Python itself, which Node.js runs: so a page starts in half the time.

Python for browsers: the pinned release of Pyodide, from npm's cache of packages, a folder or a tarball, each file checked.

A wheel of this package as it is installed, with what the page needs of it: the same bytes each time it is made.

Zip archives with the same bytes each time they are made, and their Python files compiled. Needs the standard library alone.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import marshal
import os
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from importlib import metadata
from importlib.util import MAGIC_NUMBER, source_hash
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from .. import __version__
from ..errors import ConfigError
from ..wording import shown

PACKAGE = "pyodide@314.0.7"
"""The npm package, of which these files are taken."""
LICENCE = "MPL-2.0"
INTEGRITY = "sha512-0YvXxEhfEdpLfb/XkM2BFAeMROq0iMUX2bzzH9pOttyMcWkwq+HbE5uyuGD82LN7y2q+SNvi/6V5JEsOlD2R1A=="
"""The checksum that the registry publishes of its tarball."""
FILES = {
    "pyodide.mjs": "6f1d60f7bf529beb300f0f47983c921d3982363640ba20af0e38efdddbc66109",
    "pyodide.asm.mjs": "f7cdc8ece80678ceb712f8e65ebe6d3a83203a180c399865f49612a051693635",
    "pyodide.asm.wasm": "cc36e3cab04fdfc9a63ff13eb52eae2b911bf46c025cc7b281f394bd3de1d5e6",
    "python_stdlib.zip": "fa1957e5777068fc4f7437f96d860ae2fbe9c19732ba06c84e004ec16dd7dd7a",
    "pyodide-lock.json": "5dc2fc119108bc148c7457dc86e7675b5c87e1cafd420b9c34c1eaef7b36c010",
}
"""What the page needs of it, each with its sha256."""
SECONDS = 600
"""Time for npm."""
INSTEAD = f"give a folder or tarball of the npm package {PACKAGE} with --pyodide"


class Release(NamedTuple):
    """The release that is pinned: name and version of the npm package, the checksum of its tarball and of the files that are taken."""

    package: str = PACKAGE
    integrity: str = INTEGRITY
    files: dict[str, str] = FILES

    @property
    def tarball(self) -> str:
        """The name that npm gives its tarball."""
        return self.package.replace("@", "-") + ".tgz"


def pyodide(given: str | None = None, release: Release = Release()) -> dict[str, bytes]:  # noqa: B008
    """The files of the release by name: of a folder or tarball, of the cache, or fetched with npm and cached.

    Raises ConfigError where it cannot be had, or is not what is pinned.
    """
    if given is not None:
        path = Path(given).expanduser()
        if path.is_dir():
            return _of_folder(path, release)
        if path.is_file():
            return _of_tarball(path.read_bytes(), str(path), release)
        raise ConfigError(f"--pyodide {shown(given)} is neither a folder nor a tarball")
    cached = cache() / release.tarball
    if cached.is_file() and _integrity(cached.read_bytes()) == release.integrity:
        return _of_tarball(cached.read_bytes(), str(cached), release)
    content = _fetched(release)
    files = _of_tarball(content, release.tarball, release)
    _keep(cached, content)
    return files


def cache() -> Path:
    """Where what was fetched is kept for the next time."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home) / "megatron-memory-estimator"


def _fetched(release: Release) -> bytes:
    npm = shutil.which("npm")
    if npm is None:
        raise ConfigError(f"npm fetches {release.package} and is not installed; install it, or {INSTEAD}")
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [npm, "pack", release.package, "--ignore-scripts"],
                cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise ConfigError(f"npm had not fetched {release.package} after {SECONDS} s; {INSTEAD}") from None
        packed = Path(folder) / release.tarball
        if done.returncode or not packed.is_file():
            raise ConfigError(f"npm could not fetch {release.package}: {_reason(done.stderr)}; {INSTEAD}")
        return packed.read_bytes()


def _reason(text: str) -> str:
    """What npm says: its first line about an error."""
    lines = [line.split(None, 2)[-1] for line in text.splitlines() if line.startswith(("npm error", "npm ERR!"))]
    return shown(lines[0]) if lines else "it says nothing"


def _keep(path: Path, content: bytes) -> None:
    """Keep what was fetched; without a cache it is fetched again."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(content)
        os.replace(file.name, path)
    except OSError:
        pass


def _integrity(content: bytes) -> str:
    return "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode()


def _of_tarball(content: bytes, name: str, release: Release) -> dict[str, bytes]:
    if _integrity(content) != release.integrity:
        raise ConfigError(
            f"{shown(name)} is not the tarball of {release.package}: its sha512 differs from the one that is pinned"
        )
    found = {}
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        for one in release.files:
            file = archive.extractfile(f"package/{one}")
            assert file is not None, one
            found[one] = file.read()
    return found


def _of_folder(folder: Path, release: Release) -> dict[str, bytes]:
    found = {}
    for name, checksum in release.files.items():
        path = folder / name
        if not path.is_file():
            raise ConfigError(f"{shown(str(folder))} has no {name}, which {release.package} has")
        found[name] = path.read_bytes()
        if hashlib.sha256(found[name]).hexdigest() != checksum:
            raise ConfigError(
                f"{shown(str(path))} is not that of {release.package}: its sha256 differs from the one that is pinned"
            )
    return found


SCHEMA = "megatron-memory-site/1"
LISTED = "engine.json"
"""The file that says what a site holds, and that it is one."""
PAGE = ("index.html", "offline.js", "page.css", "page.js", "third_party.json", "worker.js")
SERVED, ALONE = (f'<meta name="engine" content="{engine}" />' for engine in ("http", "worker"))
"""Who answers the page: its server, or the library in a worker of the page."""
STARTED = ("pyodide.js", "pyodide.asm.js", "pyodide.asm.wasm", "pyodide-lock.json", "python_stdlib.zip")
"""What of Pyodide is loaded before the first answer."""
COUNTED = tuple(name for name in STARTED if not name.endswith(".js"))
"""What of it the worker counts as it comes; a browser loads scripts itself."""
LOCK, LIBRARY, ENGINE = "pyodide-lock.json", "python_stdlib.zip", "engine.zip"
"""Pyodide's list of packages, Python's standard library, and the package while it is compiled."""


def site(
    given: str | None = None,
    numpy: str | None = None,
    release: Release = Release(),  # noqa: B008
    docs: str | None = None,
) -> dict[str, bytes]:
    """The files of a site by their paths in it.

    `given` is a folder or tarball of Pyodide, and `numpy` its wheel of NumPy, for plans over the whole of large spaces. `docs` is
    the folder of the built documentation, to which the words of the page link then. Raises ConfigError where one of them cannot be had or
    is not what is pinned.
    """
    python = pyodide(given, release)
    archives = {LIBRARY: python[LIBRARY], ENGINE: archived(contents())}
    compiled = compiled_archives(python, archives)
    archives = compiled or archives
    files = {
        **_page(with_docs=docs is not None),
        **_docs(docs),
        **_first(),
        **_hosted(),
        wheel_name(): wheel(files_of(archives[ENGINE])),
    }
    # modules are named .js in a site, because some file servers give .mjs a type that browsers refuse
    files |= {f"pyodide/{name.replace('.mjs', '.js')}": content for name, content in python.items()}
    files[f"pyodide/{LIBRARY}"] = archives[LIBRARY]
    wheel_of_numpy = None if numpy is None else _numpy(numpy, python[LOCK])
    if wheel_of_numpy is not None:
        files[f"pyodide/{wheel_of_numpy[0]}"] = wheel_of_numpy[1]
    listed = {
        "schema": SCHEMA,
        "version": __version__,
        "wheel": wheel_name(),
        "numpy": None if wheel_of_numpy is None else wheel_of_numpy[0],
        "compiled": compiled is not None,
        "bytes": sum(len(files[name]) for name in (wheel_name(), *(f"pyodide/{one}" for one in COUNTED))),
        "pyodide": {"package": release.package, "licence": LICENCE, "integrity": release.integrity},
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in sorted(files.items())},
    }
    return {**files, LISTED: (json.dumps(listed, indent=1) + "\n").encode()}


FIRST: dict[str, Any] = {
    "model": "meta-llama/Llama-3.1-8B",
    "num_gpus": 8,
    "settings": {"tensor_model_parallel_size": 2},
}
"""The run that the page opens with (`web/src/address.ts`, EXAMPLE): a site holds its documents, which are there before the engine."""
SPACE = """---
title: Megatron memory
sdk: static
app_file: index.html
pinned: false
---

GPU memory of Megatron training runs, computed in this tab: nothing that is typed leaves it.
"""
"""What a Space of Hugging Face reads of a static folder."""


def _hosted() -> dict[str, bytes]:
    """What static hosts need: GitHub Pages to leave the files as they are, a Space to know what they are."""
    return {".nojekyll": b"", "README.md": SPACE.encode()}


def _first() -> dict[str, bytes]:
    """The documents of the run that the page opens with: its estimate, the step, and the tensors of its peak."""
    from ..estimator import estimate
    from ..report.page import frozen
    from ..service.jobs import Files, job_of

    found = estimate(job_of(FIRST["model"], None, FIRST["num_gpus"], FIRST["settings"], Files(None, hub=False)))
    held = {"run": FIRST, "documents": frozen(found, 0)["documents"]}
    return {"first.json": json.dumps(held, separators=(",", ":")).encode()}


def _docs(built: str | None) -> dict[str, bytes]:
    """The built documentation. Raises ConfigError for a folder that is none."""
    if built is None:
        return {}
    folder = Path(built).expanduser()
    if not (folder / "index.html").is_file() or not (folder / "reference" / "glossary.html").is_file():
        raise ConfigError(f"--docs {shown(built)} is not the built documentation; `make docs` writes it to build/docs")
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {f"docs/{name}": path.read_bytes() for name, path in files.items() if not f"/{name}".count("/.")}


def _page(*, with_docs: bool = False) -> dict[str, bytes]:
    folder = Path(__file__).parent / "page"
    files = {name: (folder / name).read_bytes() for name in PAGE}
    index = files["index.html"].decode()
    assert index.count(SERVED) == 1, "the page says who answers it"
    own = f'{ALONE}\n    <meta name="docs" content="docs/" />' if with_docs else ALONE
    return {**files, "index.html": index.replace(SERVED, own).encode()}


def _numpy(given: str, lock: bytes) -> tuple[str, bytes]:
    """The name and content of Pyodide's wheel of NumPy. Raises ConfigError for any other file."""
    known = json.loads(lock)["packages"]["numpy"]
    path = Path(given).expanduser()
    if not path.is_file():
        raise ConfigError(
            f"--numpy {shown(given)} is not a file; Pyodide's distribution has it as {known['file_name']}"
        )
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != known["sha256"]:
        raise ConfigError(
            f"--numpy {shown(given)} is not {known['file_name']} of Pyodide's distribution: its sha256 differs"
        )
    return known["file_name"], content


def write_site(out: str, files: dict[str, bytes]) -> None:
    """Write a site to a folder, which is new, empty, or an older site.

    All of it is written beside the folder first, so that there is the old one or the new one, never a part. Raises ConfigError for a
    folder with other files.
    """
    folder = folder_of(out)
    try:
        _replace(folder, files)
    except OSError as error:
        raise ConfigError(f"--out {shown(str(folder))} cannot be written: {error.strerror}") from None


def _replace(folder: Path, files: dict[str, bytes]) -> None:
    """Write the files beside the folder, and put them in its place."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        fresh, old = beside / "new", beside / "old"
        for name, content in files.items():
            path = fresh / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        if folder.exists():
            os.rename(folder, old)
        os.rename(fresh, folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def folder_of(out: str) -> Path:
    """The folder that a site is written to. Raises ConfigError for what is none, or one that a site may not take the place of."""
    if not out.strip():
        raise ConfigError("--out is empty; give a folder")
    folder = Path(out).expanduser().resolve()
    if not folder.exists():
        return folder
    if not folder.is_dir():
        raise ConfigError(f"--out {shown(str(folder))} is a file; give a folder")
    here = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()}
    strange = sorted(here - _listed(folder))
    if strange:
        raise ConfigError(
            f"--out {shown(str(folder))} has files that are not of a site, such as {shown(strange[0])}; give a new or empty folder"
        )
    return folder


def _listed(folder: Path) -> set[str]:
    """The files of the site that a folder holds: none where it holds no site."""
    try:
        contents = json.loads((folder / LISTED).read_text(encoding="utf-8"))
        return {LISTED, *contents["files"]} if contents["schema"] == SCHEMA else set()
    except (OSError, ValueError, KeyError, TypeError):
        return set()


COMPILING = 120
"""Time for all archives."""


def compiled_archives(python: Mapping[str, bytes], archives: Mapping[str, bytes]) -> dict[str, bytes] | None:
    """Zip archives by name with .pyc files in the place of .py files; None where Node.js is missing or cannot run Pyodide.

    `python` are the files of Pyodide. What is not compiled here the browser compiles at each start.
    """
    node = shutil.which("node")
    if node is None:
        return None
    script = Path(__file__).parent / "compile.mjs"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        for file, content in {**python, **archives}.items():
            (folder / file).write_bytes(content)
        try:
            done = subprocess.run(
                [node, str(script), str(folder), *archives], capture_output=True, timeout=COMPILING, check=False
            )
        except (subprocess.TimeoutExpired, OSError):
            return None
        if done.returncode:
            return None
        return {file: (folder / file).read_bytes() for file in archives}


NAME = "megatron_memory_estimator"
LEFT_OUT = (
    "__main__.py", "cli", "mcp_server.py", "report/validation.py", "service/schema.py", "service/pool.py",
    "throughput/calibrate.py", "validation/differences.jsonl", "validation/runs.jsonl", "web",
)  # fmt: skip
"""What only the command line, the servers and measured runs need."""
REPORT = ("web/page/index.html", "web/page/page.css", "web/page/page.js")
"""What reports are made of, all the same."""


def wheel_name() -> str:
    """The name of the wheel."""
    return f"{NAME}-{__version__}-py3-none-any.whl"


def contents() -> dict[str, bytes]:
    """The files of the package, and the pure Python files of PyYAML beside it."""
    return dict(sorted([*_package(), *_yaml()]))


def wheel(files: Mapping[str, bytes]) -> bytes:
    """The wheel of the package's files."""
    info = f"{NAME}-{__version__}.dist-info"
    about = f"Wheel-Version: 1.0\nGenerator: {NAME} {__version__}\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    whole = {**files, f"{info}/METADATA": _metadata(NAME).encode(), f"{info}/WHEEL": about.encode()}
    record = "".join(f"{name},{_digest(content)},{len(content)}\n" for name, content in whole.items())
    return archived({**whole, f"{info}/RECORD": f"{record}{info}/RECORD,,\n".encode()})


def _package() -> Iterator[tuple[str, bytes]]:
    root = Path(__file__).parent.parent
    for path in root.rglob("*"):
        name = path.relative_to(root).as_posix()
        left = name not in REPORT and any(name == one or name.startswith(f"{one}/") for one in LEFT_OUT)
        if path.is_file() and "__pycache__" not in path.parts and not left:
            yield f"{NAME}/{name}", path.read_bytes()


def _yaml() -> Iterator[tuple[str, bytes]]:
    for path in Path(yaml.__file__).parent.glob("*.py"):
        yield f"yaml/{path.name}", path.read_bytes()
    for file in metadata.distribution("PyYAML").files or ():
        if file.name in ("METADATA", "LICENSE") and not file.as_posix().startswith(".."):
            yield file.as_posix(), Path(str(file.locate())).read_bytes()


def _metadata(name: str) -> str:
    """What the installed package says of itself; of files that are not installed, name and version."""
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        found = None
    text = found.read_text("METADATA") if found is not None and found.version == __version__ else None
    return text or f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {__version__}\n"


def _digest(content: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


MADE = (1980, 1, 1, 0, 0, 0)
"""The time of every file: the first that a zip archive knows."""
UNCHECKED = (1).to_bytes(4, "little")
"""Flags of a .pyc that stands for a hash of its source, which is not looked at (PEP 552)."""


def archived(files: Mapping[str, bytes]) -> bytes:
    """A zip archive of files by name."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in files.items():
            one = zipfile.ZipInfo(name, MADE)
            one.compress_type = zipfile.ZIP_DEFLATED
            one.external_attr = 0o644 << 16
            archive.writestr(one, content)
    return written.getvalue()


def files_of(archive: bytes) -> dict[str, bytes]:
    """The files of a zip archive by name."""
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        return {name: opened.read(name) for name in opened.namelist() if not name.endswith("/")}


def compiled(archive: bytes) -> bytes:
    """The archive with a .pyc file in the place of each .py file, made by the Python that runs this."""
    found = {}
    for name, content in files_of(archive).items():
        if name.endswith(".py"):
            code = compile(content, name, "exec", dont_inherit=True, optimize=0)
            found[f"{name}c"] = MAGIC_NUMBER + UNCHECKED + source_hash(content) + marshal.dumps(code)
        else:
            found[name] = content
    return archived(found)
