"""Arguments and files of other programs of Megatron-LM: encoder-decoders, BERT, retrievers, vision, text generation.

Sources: NVIDIA/Megatron-LM `pretrain_t5.py`, `pretrain_bert.py`, `pretrain_vlm.py`, `examples/inference/`,
`tests/functional_tests/test_cases/`, `megatron/training/arguments.py` (which program reads which argument).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from ...errors import ConfigError, UnsupportedError
from ...wording import dashed, shown
from .reading import Reading
from .table import arguments

NEOX = frozenset({"pipe_parallel_size", "train_micro_batch_size_per_gpu", "zero_optimization", "model_parallel_size"})
"""Keys of EleutherAI/gpt-neox `configs/*.yml`, at least two of which make such a file."""
_VISION = ("img_h", "img_w", "patch_dim", "num_classes", "num_channels", "mask_type")
OWN = {
    **dict.fromkeys(_VISION, "a vision model"),
    **dict.fromkeys(("bert_binary_head", "bert_load"), "BERT"),
    "retriever_seq_length": "a retriever",
    **dict.fromkeys(("decoder_num_layers", "decoder_seq_length", "vocab_extra_ids"), "an encoder with a decoder (T5)"),
}
"""Arguments that only other programs read, by what these train; the first kind that is found is named."""
_FOLDER = re.compile(
    r"(?:^|/)(bert|t5|retro|multimodal[-_]llava|vision|biencoder|ict)(?:[-_][^/]*)?/[^/]+/model_config\.yaml$"
)
"""A test case of another program: `bert/case/model_config.yaml`."""


def refuse_other_documents(document: Mapping[Any, Any], path: str) -> None:
    """Raises UnsupportedError for a YAML file of another program, and for a test case that does not train."""
    if len(NEOX & {str(key).replace("-", "_") for key in document}) > 1:
        raise UnsupportedError(
            f"{path} is a configuration of GPT-NeoX, which DeepSpeed's engine trains; it is not modelled"
        )
    if str(document.get("MODE", "")).lower() == "inference":
        raise UnsupportedError(f"{path} is a test of inference (MODE); it is not a training run")


def other_programs(reading: Reading) -> None:
    """Refuses arguments of a program that trains no decoder, by name; an encoder alone is the decoder, as in Megatron-LM."""
    given = reading.given
    odd = [name for name in OWN if given.get(name) is not None and given[name] != arguments()[1][name].default]
    if odd:
        kind = OWN[odd[0]]
        names = frozenset(name for name in odd if OWN[name] == kind)
        reading.refused.append(f"{_flags(names)} of {kind}, which is not modelled")
    elif given.get("encoder_num_layers") is not None and given.get("num_layers") is None:
        reading.changes["num_layers"] = given["encoder_num_layers"]
    length = given.get("encoder_seq_length")
    if length is not None and given.get("seq_length") not in (None, length):
        raise ConfigError(
            f"--seq-length {shown(given['seq_length'])} and --encoder-seq-length {shown(length)} are one length; give one of them "
            "(Megatron-LM arguments.py: validate_args)"
        )
    if length is not None:
        reading.changes["seq_length"] = length
    kind, words = str(given.get("tokenizer_type") or ""), str(given.get("vocab_file") or "").split("/")[-1]
    pieces = words.endswith("vocab.txt") and not kind
    if not odd and (pieces or kind.startswith("BertWordPiece")):
        said = f"--vocab-file {words}" if pieces else f"--tokenizer-type {shown(kind)[1:-1]}"
        reading.refused.append(f"{said} of BERT or T5, which are not modelled")


def refuse_folder(path: str) -> None:
    """Raises UnsupportedError for a file of arguments that stands in the folder of another program's test cases."""
    found = _FOLDER.search(os.path.abspath(path).replace(os.sep, "/"))
    if found:
        raise UnsupportedError(
            f"{path} stands in the folder {found.group(1)}, of another kind of model than a decoder; only GPT-like models and "
            "hybrids are modelled"
        )


def _flags(names: frozenset[str]) -> str:
    return ", ".join(dashed(name) for name in sorted(names))
