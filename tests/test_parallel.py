"""Attention and MLP side by side: bytes of NeMo's FalconTransformerLayer, built from Megatron-Core 0.19.2 and TransformerEngine 2.20.2.

The real layer was run on tensors without contents (cuDNN attention, fused SwiGLU and RoPE): what it keeps for its backward, and its
largest moments with the gradient of its output there. cuDNN keeps 24 bytes of random state more.
"""

from __future__ import annotations

from typing import Any

import pytest

from megatron_memory_estimator import ConfigError, LayoutError, TrainingJob, estimate
from megatron_memory_estimator.modules.layers import layer_unit
from megatron_memory_estimator.rank.build import context_of
from megatron_memory_estimator.tape.simulate import leftovers, trace

CONFIG: dict[str, Any] = {
    "num_layers": 4, "hidden_size": 5120, "num_attention_heads": 40, "num_query_groups": 8, "ffn_hidden_size": 15360,
    "gated_linear_unit": True, "activation_func": "silu", "normalization": "LayerNorm", "add_bias_linear": False,
    "attention_dropout": 0.0, "hidden_dropout": 0.0, "vocab_size": 64000, "seq_length": 4096, "micro_batch_size": 1,
    "parallel_attention": True, "apply_rope_fusion": True, "bias_activation_fusion": True, "attention_kernel": "cudnn",
    "gradient_accumulation_fusion": True, "gpu": "H100",
}  # fmt: skip


def job(tp: int = 1, **settings: Any) -> TrainingJob:
    degrees = {"tensor_model_parallel_size": tp, "sequence_parallel": tp > 1}
    return TrainingJob.from_config({**CONFIG, **degrees, **settings}, tp)


@pytest.mark.parametrize(
    ("norms", "tp", "kept", "forward", "backward"),
    [
        (1, 1, 562_724_864, None, None),
        (1, 4, 140_681_216, 214_081_536, 224_567_296),
        (2, 1, 604_700_672, None, None),
        (2, 4, 151_175_168, 224_575_488, 235_061_248),
    ],
)
def test_bytes_of_the_real_layer(norms: int, tp: int, kept: int, forward: int | None, backward: int | None) -> None:
    unit = layer_unit(context_of(job(tp, num_ln_in_parallel_attn=norms)), "parallel").unit
    found = trace(unit)
    assert found.saved_bytes == kept
    if forward is not None:
        assert max(event.nbytes for event in found.forward) == forward
        assert max(event.nbytes for event in found.backward) == backward
    assert unit.entry is not None
    assert list(leftovers(unit).values()) == [
        unit.entry.nbytes
    ]  # the gradient of its input, which is that of its output


@pytest.mark.parametrize(
    ("name", "layers", "norms"),
    [("CohereLabs/c4ai-command-r-v01", 40, 1), ("tiiuae/falcon-7b", 32, 1), ("tiiuae/falcon-40b", 60, 2)],
)
def test_published_models_are_estimated(name: str, layers: int, norms: int) -> None:
    found = TrainingJob.from_hf(name, 8)
    assert found.model.kinds == ("parallel",) * layers
    assert found.model.num_ln_in_parallel_attn == norms
    assert any("NeMo's Falcon layer" in warning for warning in found.warnings)
    names = {p.name for plan in estimate(found).stages[0].rank.plans for p, _ in plan.params}
    assert "input_layernorm.weight" in names
    assert ("pre_mlp_layernorm.weight" in names) == (norms == 2)


def test_command_r_plus_keeps_its_refusal() -> None:
    with pytest.raises(Exception, match="weights of every head"):
        estimate(TrainingJob.from_hf("CohereLabs/c4ai-command-r-plus", 8))


def test_what_the_layer_does_not_have_is_refused() -> None:
    settings = {"num_attention_heads": 48, "num_query_groups": 3, "kv_channels": 128, "hidden_size": 6144}
    with pytest.raises(LayoutError, match="ffn_hidden_size=14336 is not divisible by tensor_model_parallel_size=3"):
        estimate(job(3, ffn_hidden_size=14336, padded_vocab_size=64128, seq_length=3072, **settings))
    with pytest.raises(ConfigError, match="parallel_attention excludes num_moe_experts"):
        job(num_moe_experts=8)
    with pytest.raises(LayoutError, match="excludes fine_grained_activation_offloading"):
        estimate(job(fine_grained_activation_offloading=True, offload_modules=("core_attn",)))
