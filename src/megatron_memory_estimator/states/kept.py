"""A tensor that an optimizer keeps, and what an optimizer sees of a buffer."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

from ..tape.tensor import DTYPE_BYTES

Since = Literal["setup", "first step", "step", "optimizer"]
"""From when a tensor exists: from construction, or from the first optimizer step on; "step": from an optimizer step to the next
zeroing of gradients, between two steps but never together with activations; "optimizer": during the step alone."""


class Kept(NamedTuple):
    """A tensor that the optimizer keeps; `saved`: a checkpoint holds it."""

    name: str
    dtype: str
    numel: int
    since: Since
    saved: bool = True

    @property
    def main(self) -> bool:
        """Whether it is of the main parameters."""
        return self.name.startswith("main_param")

    @property
    def nbytes(self) -> int:
        """Its bytes."""
        return self.numel * DTYPE_BYTES[self.dtype]


class Owned(Protocol):
    """A buffer as an optimizer sees it: dtypes, and the elements that this rank owns (`states.buffers.Buffer`)."""

    @property
    def param_dtype(self) -> str: ...
    @property
    def grad_dtype(self) -> str: ...
    @property
    def owned(self) -> int: ...
    @property
    def owned_matrices(self) -> int: ...
    @property
    def offloaded(self) -> int: ...
