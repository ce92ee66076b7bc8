"""A file of a stranger as plain values: pickles that hold dicts, lists, tuples, texts and numbers alone, bounded before they are loaded.

A memory snapshot needs no class (torch `cuda/memory.py`, _dump_snapshot; `csrc/cuda/memory_snapshot.cpp`), so an operation of pickle that
imports, calls or builds anything is refused by its name. Every operation is checked before one is run: lengths against the file, and
places in the memo, of which an unpickler makes as many as the highest one says (9 bytes can ask for 64 GiB).
"""

from __future__ import annotations

import gc
import io
import pickle
import re
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import ConfigError

MOST_BYTES = min(4 * 2**30, sys.maxsize)
"""Bytes of an unpacked file that are read at most: ten million events with their frames."""
GZIP, ZIP, PROTO = b"\x1f\x8b", b"PK\x03\x04", b"\x80"
STEP = 5000
"""Operations that one look at the file passes."""
SIZED = {b"\x8c": 1, b"X": 4, b"\x8d": 8, b"\x95": 8}
"""Operations with a length behind them, and the bytes of that: texts, and a frame, whose contents are operations again."""
FRAME, STOP, VERSION, PLACE = b"\x95", b".", b"\x80", b"r"
PLAIN, WIDEST = frozenset(map(bytes, zip(b")(]}\x94\x88\x89Nt\x85\x86\x87usaedlKhqMJjG\x8a"))), 9
"""Operations that need nothing else to be known, and their most bytes."""
NAMES = {
    "c": "GLOBAL", "\x93": "STACK_GLOBAL", "i": "INST", "o": "OBJ", "\x81": "NEWOBJ", "\x92": "NEWOBJ_EX", "R": "REDUCE", "b": "BUILD",
    "P": "PERSID", "Q": "BINPERSID", "\x82": "EXT1", "\x83": "EXT2", "\x84": "EXT4", "\x8b": "LONG4",
}  # fmt: skip
"""Operations that a snapshot does not have, by their names in pickle."""


def values_of(data: bytes) -> Any:
    """The values of a pickle, packed or not. Raises ConfigError for anything else, before any of it is built."""
    raw = _unpacked(data)
    if not raw.startswith(PROTO):
        raise ConfigError("it is no pickle: a memory snapshot is what torch.cuda.memory._dump_snapshot writes")
    _checked(raw)
    with _uncollected():
        try:
            return _Plain(io.BytesIO(raw)).load()
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(f"it is a broken pickle: {type(error).__name__}") from None


class _Plain(pickle.Unpickler):
    """An unpickler without classes."""

    def find_class(self, module: str, name: str) -> Any:
        raise ConfigError(f"it holds {module}.{name}: a memory snapshot has no classes")

    def persistent_load(self, pid: Any) -> Any:
        raise ConfigError("it refers to objects outside of it: a memory snapshot has none")


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without looking for garbage while millions of values are made."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def _unpacked(data: bytes) -> bytes:
    """What is in a gzip or zip file, or the data themselves. Raises ConfigError for more than `MOST_BYTES`."""
    try:
        if data.startswith(GZIP):
            packed = zlib.decompressobj(wbits=31)
            found = packed.decompress(data, MOST_BYTES)
            _bound(len(found) + bool(packed.unconsumed_tail))
            return found
        if data.startswith(ZIP):
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                (name,) = archive.namelist()[:2]
                _bound(archive.getinfo(name).file_size)
                with archive.open(name) as file:
                    return file.read(MOST_BYTES)
    except (zlib.error, zipfile.BadZipFile, EOFError, ValueError, RuntimeError) as error:
        raise ConfigError(f"it cannot be unpacked: {error}") from None
    _bound(len(data))
    return data


def _bound(size: int) -> None:
    if size > MOST_BYTES:
        raise ConfigError(f"it has more than {MOST_BYTES / 2**30:.0f} GiB")


def _checked(data: bytes) -> None:
    """Raise ConfigError for an operation that no snapshot has, a length beyond the file, or a place in the memo beyond it."""
    plain = _operations(len(data))
    at, size = 0, len(data)
    while at < size:
        match = plain(data, at)
        at = match.end() if match is not None else at
        if match is not None and match.end() - match.start() >= STEP:
            continue
        code = data[at : at + 1]
        if code == STOP:
            return
        if code == VERSION:
            at += 2
        elif code in SIZED:
            width = SIZED[code]
            length = int.from_bytes(data[at + 1 : at + 1 + width], "little")
            at += 1 + width
            if length > size - at:
                raise ConfigError(f"it says that {length:,} bytes follow, and has {max(size - at, 0):,}")
            at += 0 if code == FRAME else length
        elif code == PLACE:
            place = int.from_bytes(data[at + 1 : at + 5], "little")
            raise ConfigError(f"it asks for place {place:,} of a memo, and has {size:,} bytes")
        elif code and size - at <= WIDEST and code in PLAIN:
            break
        elif code:
            name = NAMES.get(code.decode("latin-1"), f"operation {code[0]}")
            raise ConfigError(f"it holds {name}, at byte {at:,}: a memory snapshot has plain values alone")
    raise ConfigError("it is cut off: the end of the pickle is missing")


def _operations(size: int) -> Callable[[bytes, int], re.Match[bytes] | None]:
    """A look at operations that need nothing else to be known, as many as there are in a row, in a file of so many bytes."""
    place = size.to_bytes(5, "little")[:4] if size < 2**32 else b"\xff\xff\xff\xff"
    top = max(at for at in range(4) if place[at] or at == 0)
    memo = b"r" + b"." * top + b"[\x00-" + re.escape(place[top : top + 1]) + b"]" + b"\x00" * (3 - top)
    longs = b"|".join(bytes([count]) + b"." * count for count in range(10))
    parts = (
        rb"[\)\(\]\}\x94\x88\x89Nt\x85\x86\x87usaedl]", b"[Khq].", b"M..", b"[Jj]....", b"G" + b"." * 8, b"\x8a(?:" + longs + b")", memo,
    )  # fmt: skip
    return re.compile(b"(?:" + b"|".join(parts) + b"){1,%d}" % STEP, re.DOTALL).match
