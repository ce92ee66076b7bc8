"""OLMoE and MiniMax-M2: norms over whole query and key projections.

Sources: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/olmoe/`, `minimax_m2/`.
"""

from __future__ import annotations

from .converted import Converted, Provider
from .fields import Fields
from .moe import DENSE_WIDTH, routed

WHAT = "norms over whole query and key projections"


def olmoe(f: Fields) -> Converted:
    """OLMoE: a norm as wide as all query heads, for the key too, which no tensor-parallel rank could hold a part of."""
    settings = {
        **routed(f, DENSE_WIDTH, aux="seq_aux_loss"),
        "qk_layernorm": True,
        "qk_layernorm_scope": "projection",
        "moe_router_pre_softmax": True,
        "moe_router_dtype": "fp32",
    }
    return Converted(settings, provider=Provider("OlMoEModelProvider", WHAT))


def minimax_m2(f: Fields) -> Converted:
    """MiniMax-M2: eager norms in fp32, each rank with its part. Megatron-Bridge builds no MTP layers of it."""
    f.implied(use_qk_norm=True, qk_norm_type="per_layer", use_mtp=True, mtp_transformer_layers=1)
    f.implied(attn_type_list=[1] * f.whole("num_hidden_layers"))
    width, d = f.optional_whole("rotary_dim"), f.count("head_dim", default=128)
    settings = {
        **routed(f, DENSE_WIDTH),
        "qk_layernorm": True,
        "qk_layernorm_scope": "sharded_projection",
        "mtp_num_layers": None,
        **({"rotary_percent": min(width / d, 1.0)} if width else {}),
    }
    dropped = f.whole("num_mtp_modules", default=0)
    note = ("MTP modules of MiniMax-M2 are not built by Megatron-Bridge, nor counted",) if dropped else ()
    return Converted(settings, provider=Provider("minimax_m2_layer_spec", WHAT), warnings=note)
