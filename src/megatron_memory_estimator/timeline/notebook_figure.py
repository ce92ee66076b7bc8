"""A figure of matplotlib that a notebook shows; it shows those of pyplot only. Importing this file needs matplotlib."""

from __future__ import annotations

from io import BytesIO

from matplotlib.figure import Figure


class NotebookFigure(Figure):
    """A figure without pyplot, which is not kept alive and opens no window."""

    def _repr_png_(self) -> bytes:
        """The picture, which IPython asks for by this name."""
        page = BytesIO()
        self.savefig(page, format="png")
        return page.getvalue()
