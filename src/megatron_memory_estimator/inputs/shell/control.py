"""What ends a list of commands early."""

from __future__ import annotations


class Stop(Exception):  # noqa: N818
    """`exit`, or what ends a script."""


class Return(Exception):  # noqa: N818
    """`return`."""


class Crowded(Exception):  # noqa: N818
    """Too many ways, which nothing can stand for: some leave a loop or a function, others do not."""


class TooManyWays(Exception):  # noqa: N818
    """All ways through a script together take too much work."""


class Break(Exception):  # noqa: N818
    """`break` or `continue`, out of `levels` loops."""

    def __init__(self, levels: int, *, goes_on: bool) -> None:
        super().__init__()
        self.levels, self.goes_on = levels, goes_on
