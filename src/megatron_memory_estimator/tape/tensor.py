"""Dim, Tensor and Param: the only arithmetic of the engine.

A `Dim` is a global size and the mesh axes that shard it; a `Tensor` is a name, a shape of dims and a dtype. Sizes and
degrees are `int`; everything here is limited to `+ - * //` and the helpers below, so that integer arrays that broadcast
against each other may stand in their place and give the bytes of many layouts at once.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from functools import reduce
from math import ceil, gcd
from typing import Any, Literal, NamedTuple

from ..errors import LayoutError
from ..rules import Worded, broken, refusal
from ..wording import any_of

DTYPE_BYTES = {
    "fp64": 8,
    "fp32": 4,
    "bf16": 2,
    "fp16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "bool": 1,
    "uint8": 1,
    "fp8": 1,
}
FLOATS = frozenset({"fp64", "fp32", "bf16", "fp16"})


def ceil_div(numerator: int, denominator: int) -> int:
    """The smallest integer that is not below the quotient."""
    return -(-numerator // denominator)


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple that is not below the value."""
    return ceil_div(value, multiple) * multiple


def divisors(*numbers: int, most: int = 64) -> str:
    """The common divisors of some numbers, for a message: `1, 2, 4 or 8`."""
    found = any_of(d for d in range(1, min(*numbers, most) + 1) if all(n % d == 0 for n in numbers))
    return f"{found}, or a larger divisor" if gcd(*numbers) > most else found


def largest(a: int, b: int) -> int:
    """The larger of two counts, element by element where one of them is an array."""
    if isinstance(a, int) and isinstance(b, int):
        return a if a >= b else b
    import numpy as np

    return np.maximum(a, b)


def smallest(a: int, b: int) -> int:
    """The smaller of two counts, element by element where one of them is an array."""
    if isinstance(a, int) and isinstance(b, int):
        return a if a <= b else b
    import numpy as np

    return np.minimum(a, b)


def whole_above(value: float) -> int:
    """The smallest whole number that is not below a value, element by element for an array."""
    if isinstance(value, float):
        return ceil(value)
    import numpy as np

    return np.ceil(value).astype(np.int64)


def whole_below(value: float) -> int:
    """The largest whole number that is not above a value of at least 0; of an array a float of each, exact below 2**53."""
    if isinstance(value, float | int):
        return int(value)
    import numpy as np

    return np.floor(value)


def nearest_whole(value: float) -> int:
    """The nearest whole number, the even one of two, element by element for an array."""
    if isinstance(value, float | int):
        return round(value)
    import numpy as np

    return np.rint(value).astype(np.int64)


def total(values: Iterable[Any]) -> Any:
    """The sum, one after the other from 0 on. Python's own compensates floats since 3.12, which older versions and arrays do not."""
    return reduce(operator.add, values, 0)


def chosen(condition: Any, yes: Any, no: Any) -> Any:
    """`yes` where the condition holds, else `no`."""
    if isinstance(condition, bool):
        return yes if condition else no
    import numpy as np

    return np.where(condition, yes, no)


MeshAxis = Literal["tp", "cp", "ep", "etp", "gtp", "egtp"]
"""What shards a dim, by the name of its degree in `Layout`."""


class Dim(NamedTuple):
    """A tensor dim: its name, its global size and the mesh axes that shard it `ways` times together; without axes nothing does.

    A size that does not divide is refused where its share is asked for; of arrays of layouts the planner leaves those out.
    """

    name: str
    size: int
    axes: tuple[MeshAxis, ...] = ()
    ways: int = 1

    @property
    def local(self) -> int:
        """Size on one rank. Raises LayoutError where it would be a fraction."""
        _, size, axes, ways = self
        if not axes:
            return size
        share = size // ways
        if type(share) is int and share * ways != size:
            raise uneven(self)
        return share

    @property
    def uneven(self) -> bool:
        """Whether the ranks would have a fraction of it each; no answer for arrays of layouts."""
        return isinstance(self.size, int) and isinstance(self.ways, int) and self.size % self.ways != 0

    def __str__(self) -> str:
        return self.name + "".join(f"/{axis}" for axis in self.axes)


def uneven(dim: Dim, where: str = "") -> LayoutError:
    """The refusal of a dim whose size does not divide."""
    by, beside = "*".join(dim.axes), Worded(where, where)
    return refusal(
        broken("declared-dim", dim=(dim.name, dim.size), by=(by, dim.ways), where=beside, use=divisors(dim.size))
    )


class Tensor(NamedTuple):
    """A named tensor of one rank: its shape, dtype and bytes.

    `storage` names the memory it lives in, which is its own unless the tensor is a view of another one.
    """

    name: str
    shape: tuple[Dim, ...]
    dtype: str
    nbytes: int
    storage: str

    @property
    def formula(self) -> str:
        """Shape with the axes that shard each dim, such as `[seq/cp, num_attention_heads/tp]`."""
        return "[" + ", ".join(map(str, self.shape)) + "]"

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Shape on one rank."""
        return tuple(dim.local for dim in self.shape)

    def like(self, name: str, dtype: str | None = None) -> Tensor:
        """A new tensor of the same shape."""
        return tensor(name, self.shape, dtype or self.dtype)

    def view(self, name: str, shape: tuple[Dim, ...]) -> Tensor:
        """A view of this tensor: its own shape, this tensor's storage."""
        return Tensor(name, shape, self.dtype, numel_of(shape) * DTYPE_BYTES[self.dtype], self.storage)

    @property
    def differentiable(self) -> bool:
        """Whether autograd can give it a gradient."""
        return self.dtype in FLOATS


def numel_of(shape: Iterable[Dim]) -> int:
    """Elements of a shape on one rank."""
    count = 1
    for dim in shape:
        count = count * (dim.local if dim.axes else dim.size)
    return count


def tensor(name: str, shape: tuple[Dim, ...], dtype: str = "bf16") -> Tensor:
    """A tensor with a storage of its own."""
    return Tensor(name, shape, dtype, numel_of(shape) * DTYPE_BYTES[dtype], name)


class Param(NamedTuple):
    """A parameter of one rank, `copies` times (the local experts of a layer are one entry).

    `shape` is the shape of one of them. `split` says how its owner shards it: "tp", "replicated" or "expert".
    `expert_buffer` is True where Megatron reduces it over the expert data-parallel group (`param.allreduce` is False).
    `frozen`: not trained; it has no gradient and no optimizer state. `quantized` names the low-precision recipe of its layer.
    `gemm` is "te" or "megatron" for a weight whose gradient goes through gradient accumulation fusion, else "".
    `dtype` is its own where the model's cast to 16 bits leaves it alone, else "". `in_turn`: each copy is registered together with
    one of the next parameter (weight0, bias0, weight1, bias1, ...), not all copies first. `whole`: rows that its ranks gather before its
    use, without padding, where several share a tensor-parallel slice of it (`weight_shards.py`).
    """

    name: str
    shape: tuple[Dim, ...]
    split: str = "replicated"
    copies: int = 1
    expert_buffer: bool = False
    gemm: str = ""
    shared_embedding: bool = False
    matrix: bool = True
    quantized: str = ""
    frozen: bool = False
    dtype: str = ""
    in_turn: bool = False
    whole: int = 0

    @property
    def numel_each(self) -> int:
        """Elements of one of the `copies` tensors."""
        return numel_of(self.shape)

    @property
    def numel(self) -> int:
        """Elements of all `copies` tensors on one rank."""
        return self.numel_each * self.copies
