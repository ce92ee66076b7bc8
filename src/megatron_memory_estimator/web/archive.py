"""Zip archives with the same bytes each time they are made, and their Python files compiled. Needs the standard library alone."""

from __future__ import annotations

import io
import marshal
import zipfile
from collections.abc import Mapping
from importlib.util import MAGIC_NUMBER, source_hash

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
