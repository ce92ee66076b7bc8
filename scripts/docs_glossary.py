"""The glossary of the documentation and of the page, from docs/reference/glossary.csv: a word, other names that it has on the page, what it
means, and the page that explains it.

Run by `make pages`; a test holds both to what is made here.
"""

from __future__ import annotations

import csv
import json
import re
from os.path import relpath

from docs_markdown import ROOT, markdown

SOURCE = ROOT / "docs" / "reference" / "glossary.csv"
TARGET = ROOT / "web" / "src" / "glossary.ts"
HEAD = """// The words of the page, made by scripts/docs_glossary.py from docs/reference/glossary.csv; not edited by hand.

/** A word, the other names that it has on the page, what it means, and the page of the documentation that explains it. */
export type Word = { readonly word: string; readonly also: readonly string[]; readonly meaning: string; readonly page: string };

"""


def rows() -> list[dict[str, str]]:
    """The words, each with a page that there is."""
    with open(SOURCE, encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    for row in found:
        assert (ROOT / "docs" / f"{row['page']}.md").is_file(), row
    return found


def table() -> str:
    """The table of the documentation."""
    found = [
        (row["word"], row["meaning"], f"[{_title(row['page'])}]({relpath(row['page'], 'reference')}.md)")
        for row in rows()
    ]
    return markdown(("word", "meaning", "more"), found)


def _title(page: str) -> str:
    """The first heading of a page."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    return next(line[2:] for line in text.splitlines() if line.startswith("# "))


def text() -> str:
    """The words of the page."""
    plain = [
        {
            "word": _plain(row["word"]),
            "also": [one for one in row["also"].split(";") if one],
            "meaning": _plain(row["meaning"]),
            "page": row["page"],
        }
        for row in rows()
    ]
    lines = ",\n".join(f"  {json.dumps(one, ensure_ascii=False)}" for one in plain)
    return f"{HEAD}export const GLOSSARY: readonly Word[] = [\n{lines},\n];\n"


def _plain(text: str) -> str:
    return re.sub(r"[`*]", "", text)


TABLES = {"glossary": table}
