"""Connections of the server: one whose request does not arrive in time is closed, which uvicorn does between requests alone."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS_FOR_HEADERS = 15.0
"""Time in which the head of a request must arrive."""


class TimedProtocol(H11Protocol):
    """A connection that looks from time to time whether anything is asked on it."""

    seconds = SECONDS_FOR_HEADERS
    idle_since = 0.0
    look: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there."""
        super().connection_made(transport)
        self.idle_since = self.loop.time()
        self._later()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        if self.look is not None:
            self.look.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Something is asked; a request whose head is whole has begun."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self.idle_since = self.loop.time()

    def _later(self) -> None:
        self.look = self.loop.call_later(self.seconds / 3, self._looked)

    def _looked(self) -> None:
        """Close a connection on which no request has been whole for too long."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.idle_since = self.loop.time()
        elif self.loop.time() - self.idle_since >= self.seconds:
            self.transport.close()
            return
        self._later()
