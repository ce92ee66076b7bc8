"""Text with rich's markup where nobody shows colours: escaped, and taken out again, without loading rich."""

from __future__ import annotations

import re

TAG = re.compile(r"(\\*)\[([a-z#/@][^\[]*?)\]")


def escape(text: str) -> str:
    """The text, so that none of it is markup (as `rich.markup.escape`)."""
    text = TAG.sub(lambda tag: f"{tag[1]}{tag[1]}\\[{tag[2]}]", text)
    return text + "\\" if text.endswith("\\") and not text.endswith("\\\\") else text


def unmarked(text: str) -> str:
    """What is left of marked-up text without colours."""
    return TAG.sub(lambda tag: tag[1][: len(tag[1]) // 2] + (f"[{tag[2]}]" if len(tag[1]) % 2 else ""), text)
