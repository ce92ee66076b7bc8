"""Which kind each decoder layer is: from `moe_layer_freq`, `linear_attention_freq` and hybrid layer patterns.

Sources: Megatron-LM `megatron/core/models/gpt/gpt_layer_specs.py` (get_gpt_decoder_block_spec),
`megatron/training/arguments.py` (moe_freq_type), `megatron/core/models/hybrid/hybrid_layer_allocation.py`.

Sums of repeated lists, such as `([0]*3+[1]*58)`, without evaluating code.

Source: Megatron-LM `megatron/training/arguments.py` (moe_freq_type), which evaluates them as Python. Everything here is linear in the
text and in what it may become, and brackets are nested on a stack of their own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..errors import ConfigError
from ..wording import shown, signed, whole
from .variants import bare, marked

if TYPE_CHECKING:
    from .model import Model


EXPERTS = "E"
"""The symbol of routed experts."""
ROUTED, HASHED, GEMMA4, KIMI = "moe", "hash_moe", "gemma4_moe", "k3_moe"
"""The kinds of routed experts: chosen by a router, and by the token's hash."""
COMPRESSED = {0: "window", 4: "csa", 128: "hca"}
"""DeepSeek-V4's kinds of attention by their compression ratio."""
HYBRID_SYMBOLS = {
    "M": "mamba",
    "G": "gdn",
    "*": "gqa",
    "+": "mla",
    "D": "dsa",
    "W": "window",
    "C": "csa",
    "H": "hca",
    "-": "dense",
    EXPERTS: ROUTED,
}
ATTENTION = frozenset("*+DWCH")
"""The symbols of layers with query heads."""
MIXERS = {"linear": "linear_attention", "no_op": "no_attention"}
MLPS = {"linear": "linear_mlp", "no_op": "no_mlp"}
"""Kinds of what stands in the place of attention and of an MLP."""
OWNS, BORROWS = "dsa", "dsa_shared"
"""Sparse attention with an indexer of its own, and with the keys of an earlier layer."""
MOST_LAYERS = 2_000
MOST_MTP_LAYERS = 64
MOST_EXPERTS = 16_384


def frequency_list(name: str, value: object, num_layers: int) -> tuple[int, ...]:
    """0/1 for each layer. An int N marks every Nth layer from layer 0; a string is an int or an expression."""
    if isinstance(value, bool):
        raise ConfigError(f"{name}={value} must be a whole number, a 0/1 list or an expression")
    if isinstance(value, str):
        value = _expression(name, value) if "[" in value else _whole(name, value)
    if isinstance(value, int):
        if value < 1:
            raise ConfigError(f"{name}={shown(value)} must be at least 1")
        return tuple(int(i % value == 0) for i in range(num_layers))
    if not isinstance(value, list | tuple) or any(x not in (0, 1) or isinstance(x, bool) for x in value):
        raise ConfigError(f"{name} must be a whole number, a list of 0 and 1, or an expression such as ([0]*3+[1]*58)")
    if len(value) != num_layers:
        raise ConfigError(f"{name} has {len(value)} entries for num_layers={num_layers}; give one per layer")
    return tuple(value)


def _whole(name: str, text: str) -> int:
    number = signed(text.strip())
    if number is None:
        raise ConfigError(f"{name}={shown(text)} is neither a whole number nor a list expression")
    return number


def _expression(name: str, text: str) -> list[int]:
    """The list that an expression says. Raises ConfigError for one that is none, or is too long."""

    try:
        return evaluated(text, MOST_LAYERS)
    except TooLongError:
        raise ConfigError(
            f"{name}={shown(text)} has more than {MOST_LAYERS} entries, the most that is accepted"
        ) from None
    except ValueError:
        raise ConfigError(f"{name}={shown(text)} is not a sum of repeated lists such as ([0]*3+[1]*58)") from None


def linear_attention(model: Model) -> tuple[int, ...]:
    """1 for each layer that uses the experimental attention variant."""
    freq = model.linear_attention_freq
    if model.experimental_attention_variant is None:
        return (0,) * model.num_layers
    if model.experimental_attention_variant in ("dsa", "dsv4_hybrid"):
        return (1,) * model.num_layers
    if freq is None:
        raise ConfigError(
            f"experimental_attention_variant={model.experimental_attention_variant} needs linear_attention_freq"
        )
    if isinstance(freq, str) and "[" not in freq:
        freq = _whole("linear_attention_freq", freq)
    if isinstance(freq, int) and not isinstance(freq, bool):
        if freq < 1:
            raise ConfigError(f"linear_attention_freq={shown(freq)} must be at least 1")
        return tuple(int((i + 1) % freq != 0) for i in range(model.num_layers))
    return frequency_list("linear_attention_freq", freq, model.num_layers)


def compress_ratios(model: Model) -> tuple[int, ...]:
    """DeepSeek-V4: the compression ratio of each decoder layer, then of MTP.

    Raises ConfigError for a list that is too short, or has other ratios than those of `COMPRESSED`.
    """
    value, needed = model.csa_compress_ratios, model.num_layers + model.mtp
    if isinstance(value, str):
        value = tuple(_expression("csa_compress_ratios", value))
    if not isinstance(value, list | tuple) or any(isinstance(x, bool) or x not in COMPRESSED for x in value):
        raise ConfigError(
            "experimental_attention_variant=dsv4_hybrid needs csa_compress_ratios, a list of 0, 4 and 128"
        )
    if len(value) < needed:
        raise ConfigError(
            f"csa_compress_ratios has {len(value)} entries for {needed} layers, those of MTP too; give one per layer"
        )
    return tuple(value)


def owns_indexer(model: Model, layer: int) -> bool:
    """Whether a sparse-attention layer (from 0) picks its keys itself; others take those of the last layer that does.

    Source: Megatron-LM `megatron/core/transformer/experimental_attention_variant/dsa.py`.
    """
    first = max(model.dsa_indexer_skip_topk_offset, 1)
    return max(layer + 1 - first, 0) % model.dsa_indexer_topk_freq == 0


def layer_pattern(model: Model) -> tuple[str, ...]:
    """The kind of each decoder layer (`Model.kinds`); of a layer of another shape that of its variant, with its name."""
    if model.layer_variants is not None:
        return tuple(marked(model.variant(name).kinds[layer], name) for layer, name in enumerate(model.layer_variants))
    if model.hybrid_layer_pattern is not None:
        return _hybrid(model)
    if model.attn_res_block_size:
        return _kimi(model)
    if model.parallel_attention:
        return ("parallel",) * model.num_layers
    if model.gemma4_dense:
        return ("gemma4_dense",) * model.num_layers
    if model.falcon_h1:
        return ("falcon_h1",) * model.num_layers
    if model.attention_block != "attention" or model.mlp_block != "mlp":
        mixer = MIXERS.get(model.attention_block, "gqa")
        return (f"{mixer}+{MLPS.get(model.mlp_block, 'dense')}",) * model.num_layers
    softmax = "mla" if model.multi_latent_attention else "gqa"
    variant = model.experimental_attention_variant or ""
    mixers = tuple(variant if linear else softmax for linear in linear_attention(model))
    if variant == "dsv4_hybrid":
        mixers = tuple(COMPRESSED[ratio] for ratio in compress_ratios(model)[: model.num_layers])
    if variant == "dsa" and model.dsa_indexer_topk_freq > 1:
        mixers = tuple(OWNS if owns_indexer(model, layer) else BORROWS for layer in range(model.num_layers))
    routed = routed_layers(model)
    hashed = model.moe_n_hash_layers
    usual = GEMMA4 if model.gemma4_moe else ROUTED
    experts = (HASHED if layer < hashed else usual for layer in range(model.num_layers))
    mlps = (kind if expert else "dense" for kind, expert in zip(experts, routed, strict=True))
    return tuple(f"{mixer}+{mlp}" for mixer, mlp in zip(mixers, mlps, strict=True))


def _kimi(model: Model) -> tuple[str, ...]:
    """Kimi K3: every layer is a variant of its own by what it does with the bank of prefixes."""
    mixers = ("k3_kda" if linear else "k3_mla" for linear in linear_attention(model))
    mlps = (KIMI if expert else "k3_dense" for expert in routed_layers(model))
    layers = enumerate(zip(mixers, mlps, strict=True))
    return tuple(marked(f"{a}+{b}", model.bank_variant(i, model.num_layers)) for i, (a, b) in layers)


def routed_layers(model: Model) -> tuple[bool, ...]:
    """Whether each decoder layer has routed experts."""
    if model.hybrid_layer_pattern is not None:
        return tuple(symbol == EXPERTS for symbol in _main_part(model))
    if not model.num_moe_experts:
        return (False,) * model.num_layers
    return tuple(map(bool, frequency_list("moe_layer_freq", model.moe_layer_freq, model.num_layers)))


def has_heads(pattern: str | None) -> bool:
    """Whether any layer has query heads: every layer without a hybrid pattern."""
    return pattern is None or not ATTENTION.isdisjoint(pattern)


def has_experts(model: Model) -> bool:
    """Whether any layer has routed experts, MTP's too."""
    return any({ROUTED, GEMMA4, KIMI} & set(bare(kind).split("+")) for kind in model.every_kind)


def mtp_pattern(model: Model, name: str | None) -> tuple[str, ...]:
    """Kinds of the layers of one MTP depth: of the variant of that name, the last decoder layer's without one, or a hybrid pattern's part
    behind `/`."""
    parts = (model.hybrid_layer_pattern or "").split("/")
    if len(parts) - 1 > MOST_MTP_LAYERS:
        raise ConfigError(
            f"hybrid_layer_pattern has {len(parts) - 1} MTP parts; at most {MOST_MTP_LAYERS} are accepted"
        )
    if len(parts) < 2:
        last = model.kinds[-1] if name is None else marked(model.variant(name).kinds[-1], name)
        last = last.replace(HASHED, ROUTED)  # never by the token's hash
        if model.experimental_attention_variant == "dsv4_hybrid":
            ratio = compress_ratios(model)[model.num_layers] if model.mtp else 0
            return (f"{COMPRESSED[ratio]}+{last.partition('+')[2]}",)
        return (last.replace(BORROWS, OWNS),)  # nothing before it to share with
    for part in parts[1:]:
        wrong = set(part) - set(HYBRID_SYMBOLS)
        if wrong or not part or part != parts[1]:
            raise ConfigError(
                f"the MTP parts of hybrid_layer_pattern must be equal and made of {' '.join(HYBRID_SYMBOLS)}"
            )
    if model.mtp_num_layers is not None and model.mtp_num_layers not in (0, len(parts) - 1):
        raise ConfigError(
            f"hybrid_layer_pattern has {len(parts) - 1} MTP parts for mtp_num_layers={model.mtp_num_layers}"
        )
    return tuple(_of_symbol(model, symbol) for symbol in parts[1])


def _of_symbol(model: Model, symbol: str) -> str:
    """The kind of a symbol; which Gated DeltaNet a hybrid has is a setting of its own."""
    second = model.experimental_attention_variant == "gdn2"
    return "gdn2" if symbol == "G" and second else HYBRID_SYMBOLS[symbol]


def _main_part(model: Model) -> str:
    """Symbols of the decoder layers of a hybrid, without the borders of stages."""
    return (model.hybrid_layer_pattern or "").split("/")[0].replace("|", "")


def _hybrid(model: Model) -> tuple[str, ...]:
    pattern = model.hybrid_layer_pattern or ""
    main = _main_part(model)
    if pattern.split("/")[0].count("|") >= MOST_LAYERS:
        raise ConfigError(f"hybrid_layer_pattern has more than {MOST_LAYERS} segments, the most that is accepted")
    for symbol in main:
        if symbol not in HYBRID_SYMBOLS:
            raise ConfigError(
                f"hybrid_layer_pattern has {symbol!r}; the symbols are {' '.join(HYBRID_SYMBOLS)} | and /"
            )
    if "*" in main and ("+" in main or "D" in main):
        raise ConfigError("hybrid_layer_pattern mixes * with + or D; Megatron-Core allows one kind of attention")
    if len(main) != model.num_layers:
        raise ConfigError(
            f"hybrid_layer_pattern has {len(main)} sub-layers for num_layers={model.num_layers}; they must agree"
        )
    if EXPERTS in main and not model.num_moe_experts:
        raise ConfigError("hybrid_layer_pattern has E sub-layers but num_moe_experts is not set")
    return tuple(_of_symbol(model, symbol) for symbol in main)


_TOKEN = re.compile(r"\[[^\[\]]*\]|[0-9]+|\S")
_ITEM = re.compile(r"[0-9]+|\S")


class TooLongError(ValueError):
    """A list of more entries than the caller takes."""


@dataclass
class _Level:
    """What has been read between two brackets: a sum, and the product behind it."""

    most: int
    total: list[int] = field(default_factory=list)
    product: int | list[int] | None = None

    def multiply(self, value: int | list[int]) -> None:
        """The next factor. Raises ValueError for two numbers or two lists, which no list is made of."""
        if self.product is None:
            self.product = value
            return
        times, items = (value, self.product) if isinstance(value, int) else (self.product, value)
        if not isinstance(times, int) or not isinstance(items, list):
            raise ValueError("neither a number of times nor a list")
        if len(items) * times > self.most:
            raise TooLongError
        self.product = items * times

    def added(self) -> list[int]:
        """The sum with the product behind it, in the first list where there is one: a sum costs what is added."""
        if not isinstance(self.product, list):
            raise ValueError("a number is no list")
        if self.total:
            self.total.extend(self.product)
        else:
            self.total = self.product
        self.product = None
        return self.total

    def ended(self) -> list[int]:
        """The sum at a `+` or a closing bracket."""
        if len(self.added()) > self.most:
            raise TooLongError
        return self.total


def evaluated(text: str, most: int) -> list[int]:
    """The list that an expression says. Raises TooLongError for a part of more than `most` entries, ValueError for no expression."""
    outside: list[_Level] = []
    level = _Level(most)
    needs_value = True
    for token in _TOKEN.findall(text):
        if needs_value and token == "(":
            outside.append(level)
            level = _Level(most)
        elif needs_value:
            level.multiply(_items(token) if token.startswith("[") else _number(token))
            needs_value = False
        elif token == "*":
            needs_value = True
        elif token == "+":
            level.ended()
            needs_value = True
        elif token == ")" and outside:
            inner = level.ended()
            level = outside.pop()
            level.multiply(inner)
        else:
            raise ValueError(f"{token} where * + or ) should be")
    if outside or needs_value:
        raise ValueError("the expression does not end")
    return level.added()


def _items(token: str) -> list[int]:
    """The numbers of a list; commas stand between them, or blanks."""
    if not token.endswith("]"):
        raise ValueError("a list that does not end")
    items: list[int] = []
    may_follow = False  # a comma
    for word in _ITEM.findall(token[1:-1]):
        if word != ",":
            items.append(_number(word))
        elif not may_follow:
            raise ValueError("a comma without a number in front of it")
        may_follow = word != ","
    return items


def _number(token: str) -> int:
    number = whole(token)
    if number is None:
        raise ValueError(f"{token} is no number")
    return number
