"""The page as a folder for any file host: it, the package as a wheel, and Pyodide, which runs the package in the browser."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

from .. import __version__
from ..errors import ConfigError
from ..wording import shown
from .archive import archived, files_of
from .compiling import compiled_archives
from .pyodide import LICENCE, Release, pyodide
from .wheel import contents, wheel, wheel_name

SCHEMA = "megatron-memory-site/1"
LISTED = "engine.json"
"""The file that says what a site holds, and that it is one."""
PAGE = ("index.html", "page.css", "page.js", "third_party.json", "worker.js")
SERVED, ALONE = (f'<meta name="engine" content="{engine}" />' for engine in ("http", "worker"))
"""Who answers the page: its server, or the library in a worker of the page."""
LOCK, LIBRARY, ENGINE = "pyodide-lock.json", "python_stdlib.zip", "engine.zip"
"""Pyodide's list of packages, Python's standard library, and the package while it is compiled."""


def site(given: str | None = None, numpy: str | None = None, release: Release = Release()) -> dict[str, bytes]:  # noqa: B008
    """The files of a site by their paths in it.

    `given` is a folder or tarball of Pyodide, and `numpy` its wheel of NumPy, for plans over large spaces without a network.
    Raises ConfigError where one of them cannot be had or is not what is pinned.
    """
    python = pyodide(given, release)
    archives = {LIBRARY: python[LIBRARY], ENGINE: archived(contents())}
    compiled = compiled_archives(python, archives)
    archives = compiled or archives
    files = {**_page(), wheel_name(): wheel(files_of(archives[ENGINE]))}
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
        "pyodide": {"package": release.package, "licence": LICENCE, "integrity": release.integrity},
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in sorted(files.items())},
    }
    return {**files, LISTED: (json.dumps(listed, indent=1) + "\n").encode()}


def _page() -> dict[str, bytes]:
    folder = Path(__file__).parent / "page"
    files = {name: (folder / name).read_bytes() for name in PAGE}
    index = files["index.html"].decode()
    assert index.count(SERVED) == 1, "the page says who answers it"
    return {**files, "index.html": index.replace(SERVED, ALONE).encode()}


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
