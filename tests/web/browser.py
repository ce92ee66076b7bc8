"""Chromium with the page open: every request to another origin, and every error of the console, fails the test."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Error, Page, Request

REFUSED = "the server responded with a status of 4"
"""What the browser itself says of a request that is refused with a sentence."""
ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip


class Opened:
    """The page of one engine: call it with what stands behind the address of the page."""

    def __init__(self, browser: Browser, url: str, kind: str, **context: Any) -> None:
        self.browser, self.url, self.kind, self.context = browser, url, kind, context
        self.contexts: list[BrowserContext] = []
        self.wrong: list[str] = []
        self.origins: set[str] = set()

    @property
    def narrow(self) -> str:
        """Axes of a search that takes some seconds with this engine."""
        return (
            ""
            if self.kind == "serve"
            else "&axis.tp=1,2&axis.pp=16&axis.vpp=1&axis.cp=1&axis.ep=32,64&axis.recompute=none,full"
        )

    def __call__(self, link: str, width: int = 1280, height: int = 900) -> Page:
        return self.another(self.url + link, width, height)

    def another(self, url: str, width: int = 1280, height: int = 900) -> Page:
        """A page of its own, which shares nothing with the others."""
        context = self.browser.new_context(viewport={"width": width, "height": height}, **self.context)
        context.set_default_timeout(30_000)
        self.contexts.append(context)
        page = context.new_page()
        page.on("console", self._heard)
        page.on("pageerror", self._failed)
        page.on("request", self._asked)
        page.goto(url)
        return page

    def _heard(self, said: ConsoleMessage) -> None:
        if said.type == "error" and REFUSED not in said.text:
            self.wrong.append(said.text)

    def _asked(self, request: Request) -> None:
        self.origins.add("{0.scheme}://{0.netloc}".format(urlsplit(request.url)))

    def _failed(self, error: Error) -> None:
        self.wrong.append(str(error))

    def close(self) -> None:
        """Close all pages, and hold what they did."""
        for context in self.contexts:
            context.close()
        own = "{0.scheme}://{0.netloc}".format(urlsplit(self.url))
        assert not self.wrong, self.wrong
        assert self.origins <= {own, "file://", "data://", "blob://", "blob:" + own}, self.origins
