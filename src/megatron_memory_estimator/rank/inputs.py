"""The inputs of a microbatch, on chunks that read them, and who keeps them.

Sources: Megatron-LM `pretrain_gpt.py` (get_batch), `megatron/core/models/common/model_chunk_schedule_plan.py` (ModelChunkState).
"""

from __future__ import annotations

from dataclasses import replace

from ..job.pipeline import Chunk
from ..modules.attention_mask import attention_mask
from ..modules.context import Context
from ..modules.vision_tower import inputs as pixels
from ..tape.tensor import Tensor


def inputs_of(c: Context, chunk: Chunk) -> tuple[Tensor, ...]:
    """Tokens, positions, labels and loss mask, the attention mask, and pixels."""
    if not chunk.reads_inputs:
        return ()
    shape = (c.batch, c.seq)
    found = [c.new(f"batch.{name}", *shape, dtype="int64") for name in ("tokens", "position_ids", "labels")]
    if chunk.embedding and c.model.enable_mhc_connections:
        # no stream: referenced until the model's forward returns
        found.append(c.stream("embedding.output", c.hidden))
    found += [c.new("batch.loss_mask", *shape, dtype="fp32"), *attention_mask(c)]
    vits = [tower.vit for tower in c.model.towers if tower.vit and c.training.image_tokens]
    return (*found, *(x for vit in vits for x in pixels(c, vit)))


def without_mask(c: Context) -> Context | None:
    """The context of chunks that read no inputs, where their attention makes the mask that others are given; None where none does."""
    if c.te or not c.training.create_attention_mask_in_dataloader:
        return None
    return replace(c, training=replace(c.training, create_attention_mask_in_dataloader=False))


def keeping_layers(c: Context, chunk: Chunk) -> tuple[str, ...]:
    """The kinds of the layers of a chunk, of MTP's too, where it reads inputs; none where block recomputation has no checkpoint in it."""
    t = c.training
    block = t.recomputes_whole_layers() and not t.recomputes_layers()  # which has none around MTP
    if not chunk.reads_inputs or (block and not chunk.layers):
        return ()
    return (*(c.model.kinds[i] for i in chunk.layers), *chunk.mtp_kinds(c.model))
