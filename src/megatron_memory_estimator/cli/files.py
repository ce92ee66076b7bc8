"""Files that a command writes: whole, or not at all.

JSON documents on standard output: a line for each key, and for each object of a list.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import tempfile
from collections.abc import Mapping
from typing import Any

import click

from ..errors import ConfigError
from ..wording import shown


def write(path: str, content: str | bytes, option: str = "--output") -> None:
    """The whole file, or nothing; a device or a pipe is written to."""
    if not path:
        raise ConfigError(f"{option} needs the name of a file")
    try:
        data = content.encode() if isinstance(content, str) else content
        if os.path.exists(path) and not os.path.isfile(path):
            with os.fdopen(opened(path), "wb") as file:
                file.write(data)
            return
        target = os.path.realpath(path)
        if os.path.islink(target):
            raise ConfigError(f"cannot write {shown(path)}: its links lead in a circle")
        if target.startswith("/dev/") and not target.startswith("/dev/shm/"):
            raise ConfigError(f"cannot write {shown(path)}: there is no such device")
        handle, beside = tempfile.mkstemp(dir=os.path.dirname(target), prefix=".megatron-memory-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.chmod(beside, mode_of(target))
            os.replace(beside, target)
        except BaseException:
            os.unlink(beside)
            raise
    except OSError as error:
        raise ConfigError(f"cannot write {shown(path)}: {error.strerror}") from None
    except UnicodeEncodeError:
        raise ConfigError(f"cannot write {shown(path)}: a name in it is not UTF-8 text") from None


def opened(path: str) -> int:
    """A descriptor of a device or a pipe to write to. Raises ConfigError for a pipe that nobody reads, which would be waited for."""
    try:
        found = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENXIO and stat.S_ISFIFO(os.stat(path).st_mode):
            raise ConfigError(f"cannot write {shown(path)}: nobody reads this pipe") from None
        raise
    os.set_blocking(found, True)
    return found


def mode_of(path: str) -> int:
    """The permissions of a file that is replaced, or those of a new one."""
    if os.path.exists(path):
        return stat.S_IMODE(os.stat(path).st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def json_text(document: Any) -> str:
    """A document as text. Indented deeper, the standard library would not take its encoder in C, which is ten times as fast."""
    if isinstance(document, Mapping):
        return "{\n" + ",\n".join(f" {json.dumps(key)}: {_value(value)}" for key, value in document.items()) + "\n}"
    return _value(document, indent="")


def _value(value: Any, indent: str = " ") -> str:
    if not (isinstance(value, list) and value and isinstance(value[0], Mapping)):
        return json.dumps(value)
    return "[\n" + ",\n".join(f"{indent} {json.dumps(one)}" for one in value) + f"\n{indent}]"


def print_json(document: Any) -> None:
    """A document on standard output."""
    click.echo(json_text(document))
