"""The built page as it is installed: a strict policy, nothing from elsewhere, and all that others wrote in it by name."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

from .helpers import ROOT

PAGE = ROOT / "src/megatron_memory_estimator/web/page"
SCRIPTS = ("page.js", "worker.js", "offline.js")


class Tags(HTMLParser):
    """The tags of a page with their attributes, and the text inside of scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.inline = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        if self.found and self.found[-1][0] in ("script", "style"):
            self.inline += data.strip()


def tags() -> Tags:
    return Tags((PAGE / "index.html").read_text())


def test_the_policy_of_the_page_lets_in_its_own_files_alone() -> None:
    policy = next(one["content"] for _, one in tags().found if one.get("http-equiv") == "Content-Security-Policy")
    rules = {words.split()[0]: words.split()[1:] for words in policy.split(";")}
    assert rules.pop("default-src") == ["'none'"]
    assert rules.pop("img-src") == ["'self'", "data:", "blob:"]  # figures that become a PNG
    assert rules.pop("base-uri") == rules.pop("form-action") == ["'none'"]
    assert set(rules) == {"script-src", "style-src", "connect-src", "worker-src"}
    assert all(sources == ["'self'"] for sources in rules.values())


def test_the_page_has_no_script_of_its_own_and_nothing_from_elsewhere() -> None:
    found = tags()
    assert not found.inline
    for tag, attributes in found.found:
        assert not any(name.startswith("on") or name == "style" for name in attributes), tag
        for name in ("src", "href"):
            assert not attributes.get(name, "").startswith(("http", "//")), tag
    for script in SCRIPTS:
        text = (PAGE / script).read_text()
        addresses = set(re.findall(r"https?://[\w./-]+", text))
        assert addresses <= {
            "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xhtml", "http://www.w3.org/1998/Math/MathML", "http://www.w3.org/1999/xlink",
            "http://www.w3.org/XML/1998/namespace", "http://www.w3.org/2000/xmlns/",
        }, script  # fmt: skip
        assert not re.search(r"\beval\(|new Function\(|document\.write", text), script
    assert "@import" not in (PAGE / "page.css").read_text() and "url(" not in (PAGE / "page.css").read_text()


def test_what_others_wrote_in_it_has_version_licence_and_checksum() -> None:
    others = json.loads((PAGE / "third_party.json").read_text())
    asked = json.loads((ROOT / "web/package.json").read_text())["dependencies"]
    lock = json.loads((ROOT / "web/package-lock.json").read_text())["packages"]
    assert {one["name"]: one["version"] for one in others}.items() >= asked.items()
    for one in others:
        assert one["integrity"] == lock[f"node_modules/{one['name']}"]["integrity"] and one["integrity"].startswith(
            "sha512-"
        )
        assert one["licence"] in ("ISC", "MIT", "BSD-3-Clause") and len(one["text"]) > 300
    assert not any("resolved" in entry for entry in lock.values())  # no address of a registry
