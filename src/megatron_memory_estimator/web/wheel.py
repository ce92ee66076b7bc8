"""A wheel of this package as it is installed, with what the page needs of it: the same bytes each time it is made."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

import yaml

from .. import __version__
from .archive import archived

NAME = "megatron_memory_estimator"
LEFT_OUT = (
    "__main__.py", "cli", "mcp_server.py", "report/validation.py", "service/parameters.py", "service/worker.py",
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
