"""Attention and MLP side by side on one normed input (Falcon, Command-R, GPT-J).

    hidden -> input_layernorm -> self_attention ------------------------------+
       |            +-> mlp (or behind a norm of its own, pre_mlp_layernorm) -+-> sum -> + hidden

Source: NVIDIA/NeMo `nemo/collections/nlp/models/language_modeling/megatron/falcon/falcon_decoder_layer.py`
(FalconTransformerLayer) and `falcon_spec.py`: Megatron-Core's attention and MLP, with norms apart from the linears.
"""

from __future__ import annotations

from ..tape.ops import Op
from ..tape.tensor import Tensor
from .attention import self_attention
from .context import Context
from .mlp import mlp
from .module import Module, in_part
from .norm import bias_dropout_add, norm, norm_params


def parallel_layer(c: Context, hidden: Tensor, layer: int = 0) -> Module[Tensor]:
    """The residual stream behind both. Both linears keep the one normed input.

    The layer also adds attention to the residual stream as a sequential one would; that sum is never read, and alive until the real
    one takes its name, like everything else that the forward's variables hold.
    """
    two = c.model.num_ln_in_parallel_attn == 2
    beside: Tensor | None = None
    if two:
        beside = yield from in_part("mlp_norm", norm(c, "pre_mlp_layernorm", hidden))
    yield from norm_params(c, "input_layernorm.", c.hidden)
    normed = yield from in_part("attn_norm", norm(c, "input_layernorm", hidden))
    attended = yield from in_part("attn", self_attention(c, hidden, layer, normed=normed))
    unread: tuple[Tensor, ...] = (c.residual("self_attn_bda.output"),)
    if c.model.hidden_dropout > 0:
        unread = (*unread, attended.like("self_attn_bda.dropout_mask", "bool"))
    yield Op("self_attn_bda", (attended, hidden), unread, part="attn_residual")
    if two:
        yield from norm_params(c, "pre_mlp_layernorm.", c.hidden)
    out = yield from in_part("mlp", mlp(c, hidden, layer, normed=normed if beside is None else beside))
    total = out.like("mlp output plus attention output")
    yield Op("mlp.add_attention", (out, attended), (total,), passes=(out, attended), part="mlp_residual")
    held = (*unread, attended, out)
    return (yield from in_part("mlp_residual", bias_dropout_add(c, "mlp_bda", total, hidden, held)))
