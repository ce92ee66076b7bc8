"""Files of arguments that belong to another training program than that of GPT-like models, which such files do not name.

Sources: NVIDIA/Megatron-LM `pretrain_bert.py`, `pretrain_t5.py`, `pretrain_vlm.py`, `tests/functional_tests/test_cases/`,
`megatron/training/arguments.py` (which program reads which argument).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from ...errors import ConfigError
from .table import arguments

_FOLDER = re.compile(r"(?:^|/)(bert|t5|retro|multimodal[-_]llava|vision|biencoder|ict)(?:[-_][^/]*)?/[^/]+/[^/]+$")
"""A test case of another program: `bert/case/model_config.yaml`."""
OWN = {
    "decoder_seq_length": "an encoder and a decoder (T5)", "vocab_extra_ids": "an encoder and a decoder (T5)",
    "bert_binary_head": "BERT", "bert_load": "BERT", "mask_type": "a vision model", "img_h": "a vision model",
    "img_w": "a vision model", "patch_dim": "a vision model", "retriever_seq_length": "a retriever",
}  # fmt: skip
"""Arguments that only other programs read, by what these train."""


NEOX = frozenset({"pipe_parallel_size", "train_micro_batch_size_per_gpu", "zero_optimization", "model_parallel_size"})
"""Keys of EleutherAI/gpt-neox `configs/*.yml`, at least two of which make such a file."""


def refuse_other_documents(document: Mapping[Any, Any], path: str) -> None:
    """Raises ConfigError for a YAML file of another program, and for a test case that does not train."""
    if len(NEOX & {str(key).replace("-", "_") for key in document}) > 1:
        raise ConfigError(f"{path} is a configuration of GPT-NeoX, which DeepSpeed's engine trains; it is not modelled")
    if str(document.get("MODE", "")).lower() == "inference":
        raise ConfigError(f"{path} is a test of inference (MODE); it is not a training run")


def refuse_other_models(values: Mapping[str, Any], path: str) -> None:
    """Raises ConfigError for arguments of a program that trains another kind of model; `path` is the file's."""
    by_dest = arguments()[1]
    odd = [name for name in OWN if name in values and values[name] not in (None, by_dest[name].default)]
    found = f"--{odd[0].replace('_', '-')} is of {OWN[odd[0]]}" if odd else ""
    kind, vocabulary = str(values.get("tokenizer_type") or ""), str(values.get("vocab_file") or "")
    folder = _FOLDER.search(os.path.abspath(path).replace(os.sep, "/")) if path.endswith("model_config.yaml") else None
    if not found and kind.startswith("BertWordPiece"):
        found = f"--tokenizer-type {kind} is of BERT"
    if not found and not kind and os.path.basename(vocabulary) == "vocab.txt":
        found = "--vocab-file vocab.txt is of BERT's tokenizer"
    if not found and folder is not None:
        found = f"it stands in the folder {folder.group(1)}"
    if found:
        raise ConfigError(
            f"{path} holds arguments of another kind of model than a decoder: {found}; only GPT-like models and hybrids are modelled"
        )
