"""Records as a frame of pandas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .errors import ConfigError

if TYPE_CHECKING:
    from pandas import DataFrame


def frame(records: Sequence[Mapping[str, Any]]) -> DataFrame:
    """A row for each record. Raises ConfigError where pandas is not installed."""
    try:
        from pandas import DataFrame
    except ImportError:
        raise ConfigError(
            "a frame needs pandas: pip install pandas, or pip install 'megatron-memory-estimator[notebook]'; "
            "table() gives the same without it"
        ) from None
    return DataFrame(records)
