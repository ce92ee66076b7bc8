"""The attention mask that the data loader builds: whole until it is cut along cp, then part of the batch, kept by what refers to it.

Sources: Megatron-LM `megatron/core/datasets/gpt_dataset.py` (create_attention_mask), `megatron/core/utils.py`
(get_batch_on_this_cp_rank), `megatron/core/recompute.py` and `megatron/core/transformer/attention.py` (arguments of checkpoints, which
`tensor_parallel/random.py` CheckpointFunction saves), `megatron/core/fusions/fused_softmax.py` (forward_torch_softmax).
"""

from __future__ import annotations

from collections.abc import Iterable

from ..tape.tensor import Tensor
from .context import Context
from .kinds import kinds_in
from .unfused_attention import applies_given_mask


def attention_mask(c: Context) -> tuple[Tensor, ...]:
    """The mask of the rank's part of the sequence, [micro_batch_size, seq/cp, seq] of booleans, where the data loader builds one."""
    if not c.training.create_attention_mask_in_dataloader:
        return ()
    keys = c.full_seq._replace(name="seq")
    return (c.new("batch.attention_mask", c.batch, c.seq, keys, dtype="bool"),)


def uncut_mask(c: Context) -> tuple[Tensor, ...]:
    """The same of the whole sequence, alive until the rank's part is copied out of it; the other tensors of the batch are cut before."""
    if not (c.training.create_attention_mask_in_dataloader and c.cp_many):
        return ()
    keys = c.full_seq._replace(name="seq")
    return (c.new("batch.attention_mask before cp", c.batch, keys, keys, dtype="bool"),)


def given_masks(layers: Iterable[str]) -> bool:
    """Whether core attention of a layer of one of some kinds is given the mask."""
    return any("core_attn" in kind.recomputes for kind in kinds_in(layers))


def kept_mask(c: Context, *, given: bool) -> tuple[Tensor, ...]:
    """The mask, where layers keep it until their backward: checkpoints whose argument it is, or PyTorch's softmax. `given` says whether
    it reaches core attention."""
    t = c.training
    if not t.create_attention_mask_in_dataloader:
        return ()
    if t.recomputes_whole_layers() or (given and (t.recomputes("core_attn") or applies_given_mask(c))):
        return attention_mask(c)
    return ()
