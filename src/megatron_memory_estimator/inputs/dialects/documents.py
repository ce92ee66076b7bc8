"""YAML files beside a run, as mappings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...errors import ConfigError
from ...wording import shown
from ..file_keys import follow_all
from ..strict_yaml import parse_yaml
from .run import Run


def document_of(
    run: Run, path: str, kind: str, *, empty: bool = False, follows: Iterable[str] = ()
) -> dict[str, Any] | None:
    """The keys and values of a file that a run names; None where it is not there.

    `kind` is what the file must hold, for the message; with `empty` it may hold nothing; `follows` are the keys that name other files
    and that the caller reads. Raises ConfigError for one that holds something else, or names files that nobody reads.
    """
    text = run.text_of(path)
    if text is None:
        return None
    document = parse_yaml(text, path)
    if document is None and empty:
        return {}
    if not isinstance(document, Mapping):
        raise ConfigError(f"{shown(path)} must hold {kind}")
    follow_all(document, path, follows)
    return {str(key): value for key, value in document.items()}


def needed(
    run: Run, path: str, kind: str, missing: str, *, empty: bool = False, follows: Iterable[str] = ()
) -> dict[str, Any]:
    """The same of a file without which the run means nothing. Raises ConfigError with `missing` where it is not there."""
    found = document_of(run, path, kind, empty=empty, follows=follows)
    if found is None:
        raise ConfigError(missing)
    return found


def named_by(run: Run, path: str) -> str:
    """What is said of a file that a run names and that is not there."""
    return f"{shown(path)[1:-1]}, which {run.path} names, is not there; put it beside the run's file"
