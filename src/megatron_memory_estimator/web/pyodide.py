"""Python for browsers: the pinned release of Pyodide, from npm's cache of packages, a folder or a tarball, each file checked."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

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
