"""Common divisors, for messages that say which degrees would do."""

from __future__ import annotations


def divisors(*numbers: int, most: int = 64) -> str:
    """The common divisors of some numbers, for a message: `1, 2, 4 or 8`."""
    found = [str(d) for d in range(1, min(*numbers, most) + 1) if all(n % d == 0 for n in numbers)]
    return " or ".join((", ".join(found[:-1]), found[-1])) if len(found) > 1 else found[0]
