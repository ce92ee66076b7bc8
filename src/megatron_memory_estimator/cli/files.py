"""Files that a command writes: whole, or not at all."""

from __future__ import annotations

import errno
import os
import stat
import tempfile

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
