"""Arguments that only other programs of Megatron-LM take: encoder-decoders, BERT, vision, text generation.

Sources: NVIDIA/Megatron-LM `pretrain_t5.py`, `pretrain_bert.py`, `pretrain_vlm.py`, `examples/inference/`,
`megatron/training/arguments.py`.
"""

from __future__ import annotations

from .reading import Reading
from .table import arguments

GENERATES = frozenset(
    {"prompts", "prompt_file", "num_tokens_to_generate", "incoming_requests_per_step", "incoming_requests_per_sec"}
)
"""Arguments of the programs of `examples/inference/`."""
VISION = ("img_h", "img_w", "patch_dim", "num_classes", "num_channels")
"""Sizes of images, without a meaning for a model of text."""
DECODERS = ("encoder_num_layers", "decoder_num_layers", "decoder_seq_length")


def other_programs(reading: Reading, unknown: frozenset[str]) -> None:
    """Refuses arguments of a program that trains no decoder, by name; an encoder alone is the decoder, as in Megatron-LM."""
    given = reading.given
    if found := _flags(unknown & GENERATES):
        reading.refused.append(f"{found} of a program that generates text: there is no training step to estimate")
    if images := {
        name for name in VISION if given.get(name) is not None and given[name] != arguments()[1][name].default
    }:
        reading.refused.append(f"{_flags(images)} of a vision model, which is not modelled")
    elif given.get("decoder_num_layers") is not None or given.get("decoder_seq_length") is not None:
        flags = _flags({name for name in DECODERS if given.get(name) is not None})
        reading.refused.append(f"{flags} of an encoder-decoder (pretrain_t5.py), which is not modelled")
    elif given.get("encoder_num_layers") is not None and given.get("num_layers") is None:
        reading.changes["num_layers"] = given["encoder_num_layers"]
    words = str(given.get("vocab_file") or "").split("/")[-1]
    pieces = words.endswith("vocab.txt") and given.get("tokenizer_type") is None
    if pieces or str(given.get("tokenizer_type")).startswith("BertWordPiece"):
        said = f"--vocab-file {words}" if pieces else f"--tokenizer-type {given['tokenizer_type']}"
        reading.refused.append(f"{said} of pretrain_bert.py or pretrain_t5.py, whose models are not modelled")


def _flags(names: set[str] | frozenset[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in sorted(names))
