"""A model's config.json from the local Hugging Face cache, or from the Hub: one small file, read with Python's own HTTP client.

Environment variables, the cache's layout and the address of a file are those of huggingface_hub (`src/huggingface_hub/constants.py`,
`file_download.py`); nothing is written.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ...errors import ConfigError
from ..text_files import LARGEST_FILE

if TYPE_CHECKING:
    from urllib.request import Request

ENDPOINT = "https://huggingface.co"
TIMEOUT = 5.0
"""Seconds that the Hub may be silent."""
TRUE = frozenset(("1", "ON", "YES", "TRUE"))


class Unreachable(Exception):  # noqa: N818
    """No answer came from the Hub."""


class Refused(Exception):  # noqa: N818
    """The Hub answered, and not with the file: the HTTP status."""


def is_set(name: str) -> bool:
    """Whether an environment variable is a yes."""
    return os.environ.get(name, "").upper() in TRUE


def offline() -> bool:
    """Whether nothing may be fetched."""
    return is_set("HF_HUB_OFFLINE") or is_set("TRANSFORMERS_OFFLINE")


def home() -> str:
    """The folder of Hugging Face's own files."""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    return os.path.expanduser(os.environ.get("HF_HOME") or os.path.join(caches, "huggingface"))


def cached(model: str) -> str | None:
    """The path of the config.json of a model's main branch in the local cache, None where it has none."""
    given = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    folder = os.path.join(
        os.path.expanduser(given) if given else os.path.join(home(), "hub"), f"models--{model.replace('/', '--')}"
    )
    try:
        with open(os.path.join(folder, "refs", "main"), encoding="ascii") as file:
            commit = file.read(64).strip()
    except (OSError, ValueError):
        return None
    path = os.path.join(folder, "snapshots", os.path.basename(commit), "config.json")
    return path if commit and os.path.isfile(path) else None


def token() -> str | None:
    """The user's token, if there is one."""
    if is_set("HF_HUB_DISABLE_IMPLICIT_TOKEN"):
        return None
    given = os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN")
    if given:
        return given.strip()
    try:
        with open(os.environ.get("HF_TOKEN_PATH") or os.path.join(home(), "token"), encoding="ascii") as file:
            return file.read(4096).strip() or None
    except (OSError, ValueError):
        return None


def fetched(model: str) -> bytes:
    """The config.json of a model's main branch on the Hub. Raises Unreachable, Refused, and ConfigError for a file that is too large."""
    import urllib.error
    import urllib.request
    from http.client import HTTPException
    from urllib.parse import quote, urlsplit

    class OwnHost(urllib.request.HTTPRedirectHandler):
        """Follows to other hosts without the token."""

        def redirect_request(self, req: Request, *rest: object) -> Request | None:
            found = super().redirect_request(req, *rest)  # type: ignore[arg-type]
            if found is not None and urlsplit(found.full_url).netloc != urlsplit(req.full_url).netloc:
                found.remove_header("Authorization")
            return found

    endpoint = (os.environ.get("HF_ENDPOINT") or ENDPOINT).rstrip("/")
    if urlsplit(endpoint).scheme not in ("http", "https"):
        raise Unreachable(f"HF_ENDPOINT {endpoint}")
    headers = {"User-Agent": "megatron-memory-estimator"}
    if given := token():
        headers["Authorization"] = f"Bearer {given}"
    try:
        request = urllib.request.Request(f"{endpoint}/{quote(model)}/resolve/main/config.json", headers=headers)
        with urllib.request.build_opener(OwnHost).open(request, timeout=TIMEOUT) as answer:
            text: bytes = answer.read(LARGEST_FILE + 1)
    except urllib.error.HTTPError as error:
        error.close()
        raise Refused(str(error.code)) from None
    except (OSError, HTTPException, ValueError) as error:
        raise Unreachable(str(error)) from None
    if len(text) > LARGEST_FILE:
        raise ConfigError(f"config.json of {model} on the Hub is larger than {LARGEST_FILE} bytes")
    return text
