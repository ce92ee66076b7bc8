"""Experts that run one after the other: each keeps what it keeps, and only one has its short-lived tensors alive.

Source: Megatron-LM `megatron/core/transformer/moe/experts.py` (SequentialMLP.forward: torch.split, a loop, torch.cat). PyTorch
`tools/autograd/derivatives.yaml`: the gradients of the pieces of `split` are collected and joined, those of `cat` are views.
"""

from __future__ import annotations

from ..tape.ops import Op
from ..tape.tensor import Dim, Tensor, ceil_div, largest
from ..tape.work import Streamed
from .context import Context
from .module import Module, T, collected

ONE = "rows of one expert"


def runs_one_by_one(c: Context) -> bool:
    """Whether a rank's experts run one after the other; experts with adapters are taken to run at once."""
    return not c.training.moe_grouped_gemm and c.local_experts_many and c.training.peft == "none"


def rows_of_one(c: Context, rows: Dim) -> Dim:
    """The rows of one expert, all having as many."""
    return Dim(ONE, ceil_div(rows.local, c.local_experts.local))


def repeated(c: Context, module: Module[T], inputs: Tensor, outputs: Tensor) -> Module[T]:
    """The ops of the last expert, with what the others keep beside it. `inputs` and `outputs` are the rows of all experts.

    The others' tensors are there before the last expert's second op and leave behind that op's backward. The backward begins with the
    last expert, while all others keep theirs and the gradient of all outputs is alive, of which theirs are views; when it comes to the
    first, the gradients of the others' inputs have taken that place.
    """
    items, result = yield from collected(module)
    first, *middle, last = ops = [item for item in items if isinstance(item, Op)]
    assert len(ops) == len(items), "moe_act needs grouped experts"
    count = c.local_experts.local
    others = tuple(_rest(t, count - 1) for op in ops for t in op.saves if _of_one(t))
    kept, grads = sum(t.nbytes for t in others), inputs.nbytes * (count - 1) // count
    views = outputs.like("mlp.experts.gradient of all outputs")
    more = "what other experts keep and wait for, beyond gradients of their inputs"
    waiting = "gradients of other experts' inputs, beyond what these kept"
    done = _scratch(c, "outputs of the others", outputs.nbytes * (count - 1) // count)
    begun = (*first.backward, *_scratch(c, more, kept + views.nbytes - grads))
    yield _repeated(first._replace(forward=(*first.forward, *done), backward=begun), count)
    yield Op("mlp.experts.others", saves=others, calls=0, compiled=True)
    for op in middle:
        yield _repeated(op._replace(forward=(*op.forward, *done), backward=(*op.backward, views)), count)
    yield _repeated(last._replace(backward=(*last.backward, *_scratch(c, waiting, grads - kept))), count)
    return result


def _repeated(op: Op, count: int) -> Op:
    """An op of one expert in the time that it takes for all."""
    work = op.work
    if not work and not op.sends:
        named = {t.name: t for t in (*op.reads, *op.writes, *op.saves) if _of_one(t)}
        moved = sum(t.nbytes for t in named.values()) * (count - 1)
        work = (Streamed(forward=moved, backward=moved),)
    return op._replace(work=work, calls=op.calls * count)


def _of_one(t: Tensor) -> bool:
    return t.shape[0].name == ONE


def _rest(t: Tensor, others: int) -> Tensor:
    one, *features = t.shape
    rows = Dim("rows of the other experts", one.size * others)
    return Tensor(
        f"{t.name} of the others", (rows, *features), t.dtype, t.nbytes * others, f"{t.storage} of the others"
    )


def _scratch(c: Context, name: str, nbytes: int) -> tuple[Tensor, ...]:
    if isinstance(nbytes, int) and nbytes <= 0:
        return ()
    return (c.new(f"mlp.experts.{name}", Dim("bytes", largest(nbytes, 0)), dtype="uint8"),)
