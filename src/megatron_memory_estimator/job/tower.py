"""Vision and audio towers in front of a language model: their parameters, or that they are not counted."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from ..dataclass import dataclass
from ..errors import ConfigError
from ..wording import all_of, shown
from .settings import setting

SEEN = "vision tower"
HEARING = ("audio tower", "sound tower", "speech tower")
"""Names of towers that hear; `inputs/hf/unread.py` gives towers their names by the keys of their configs."""
UNNAMED = "vision or audio tower"
"""A tower of which nothing is known."""


class Weight(NamedTuple):
    """A parameter: its shape, and the dimension that tensor-parallel ranks share, if they share one."""

    name: str
    shape: tuple[int, ...]
    split: int | None = None


class Block(NamedTuple):
    """Equal layers of a tower, or what stands once in it; `projection`: it leads into the language model."""

    name: str
    copies: int
    weights: tuple[Weight, ...]
    projection: bool = False


@dataclass(frozen=True)
class TowerTraining:
    """How towers are trained, by the names of Megatron-Bridge's providers."""

    freeze_language_model: bool = setting(False, "towers: the language model behind them is not trained")
    image_tokens: int = setting(0, "vision tower: tokens of a sequence that stand for images", of="tower")
    images: str = setting(
        "", "vision tower: images of a sequence, as 4x1024x1024 (how many, height, width); several with +", of="tower"
    )
    audio_tokens: int = setting(0, "audio tower: tokens of a sequence that stand for sound", of="audio")
    freeze_vision_model: bool = setting(False, "vision tower: its layers are not trained", of="tower")
    freeze_vision_projection: bool = setting(
        False, "vision tower: what leads from it into the language model is not trained", of="tower"
    )
    freeze_audio_model: bool = setting(False, "audio tower: it is not trained", of="audio")
    vit_gradient_checkpointing: bool = setting(
        False, "towers of Qwen3-Omni: their layers run again in the backward", of="tower"
    )


class Radio(NamedTuple):
    """What RADIO has beside its layers: `classes` rows in front of each `tile` of patches, a table of `positions` that is sampled anew for
    each tile or (not `sampled`) scaled to an image, and a projector of the width `ffn`."""

    classes: int
    tile: int
    positions: int
    ffn: int
    sampled: bool


class Vit(NamedTuple):
    """Sizes of a vision tower of Megatron's own layers: `patch` numbers of a patch, `merge` patches that become one token, `out` the
    width of the language model; behind the layers `deepstack` stand mergers of their own. Qwen3-VL's, or `radio`."""

    hidden: int
    ffn: int
    heads: int
    depth: int
    patch: int
    merge: int
    out: int
    deepstack: tuple[int, ...] = ()
    radio: Radio | None = None


HfKind = Literal[
    "qwen2_5_vl", "qwen2_5_omni", "qwen3_omni", "glm4v", "siglip", "pixtral", "gemma4", "moonvit", "qwen2_5_omni_audio",
    "qwen3_omni_audio", "qwen3_asr_audio",
]  # fmt: skip


def half(n: int) -> int:
    """What a convolution of width 3, stride 2 and padding 1 leaves of a length."""
    return (n + 1) // 2


class Sound(NamedTuple):
    """What an audio tower's convolutions read: spectra of `bins`, `frames` of them together, which become `tokens` of the language model
    through `channels`."""

    bins: int
    frames: int
    tokens: int
    channels: int


class HfTower(NamedTuple):
    """Sizes of a tower that is a class of huggingface/transformers, as those of `Vit`; `merge` rows of its layers become one token.
    `positions`: of the table of positions; `merger`: the width of a gated merger; `image`: tokens that attention sees, those of an image
    where all have as many, or of a window; `clipped`: linears clamp what goes in and out; `sound`: it hears."""

    kind: HfKind
    hidden: int
    ffn: int
    heads: int
    depth: int
    patch: int
    merge: int
    out: int
    positions: int = 0
    merger: int = 0
    image: int = 0
    clipped: bool = False
    deepstack: tuple[int, ...] = ()
    sound: Sound | None = None


class Eye(NamedTuple):
    """What an image becomes before the tower: `side` pixels each way become one token, a rest is rounded `up` or to the nearest; or every
    image has `each` tokens."""

    side: int = 0
    up: bool = False
    each: int = 0

    def tokens(self, height: int, width: int) -> int:
        """Tokens of an image of so many pixels, before a limit that its processor may have."""
        if self.each:
            return self.each
        rows, columns = (-(-n // self.side) if self.up else max(round(n / self.side), 1) for n in (height, width))
        return rows * columns


class Tower(NamedTuple):
    """A tower. Without blocks it is not counted; with `vit`, of Megatron's layers, or `hf` what it computes of images is known too."""

    name: str
    blocks: tuple[Block, ...] = ()
    vit: Vit | None = None
    hf: HfTower | None = None
    eye: Eye | None = None
    unexamined: str = ""
    """The model_type of a class that nobody examined."""

    @property
    def sees(self) -> bool:
        """Whether it is known what it computes of images."""
        return self.vit is not None or self.hf is not None

    @property
    def num_parameters(self) -> int:
        """Parameters of all its blocks."""
        total = 0
        for block in self.blocks:
            for weight in block.weights:
                size = block.copies
                for n in weight.shape:
                    size *= n
                total += size
        return total

    @property
    def hears(self) -> bool:
        """Whether it is an audio tower."""
        return self.name in HEARING or (self.hf is not None and self.hf.sound is not None)

    @property
    def whole(self) -> bool:
        """Whether what leads into the language model is frozen with the layers: omni models have one switch for a tower."""
        return self.hears or (self.hf is not None and self.hf.kind in ("qwen2_5_omni", "qwen3_omni"))

    @property
    def rerun(self) -> bool:
        """Whether its class has a switch by which its layers run again (Megatron-Bridge `qwen_omni/qwen3_omni_provider.py`)."""
        return self.hf is not None and self.hf.kind in ("qwen3_omni", "qwen3_omni_audio")

    @property
    def adaptable(self) -> bool:
        """Whether it has linears of the names that Megatron-Bridge puts adapters beside (`peft/module_matcher.py`)."""
        return self.vit is not None or (self.hf is not None and self.hf.kind == "qwen3_omni")

    @property
    def asks(self) -> str:
        """The option that says how much of a sequence it makes."""
        return "--audio-tokens" if self.hears else "--images" if self.eye else "--image-tokens"

    def given(self, training: TowerTraining) -> int:
        """Tokens of a sequence that it makes."""
        return (training.audio_tokens if self.hears else training.image_tokens) if self.sees else 0

    def frozen(self, training: TowerTraining, *, projection: bool) -> bool:
        """Whether its layers, or what leads from them into the language model, are not trained."""
        if self.hears:
            return training.freeze_audio_model
        return training.freeze_vision_model if self.whole or not projection else training.freeze_vision_projection

    def lacks(self, training: TowerTraining) -> str:
        """What of it no figure has, if anything."""
        if not self.blocks:
            return f"its {self.name}"
        silent = not self.sees and self.frozen(training, projection=True)  # frozen, it keeps nothing
        return "" if silent or self.given(training) else f"the activations of its {self.name}"


def unexamined(towers: tuple[Tower, ...], training: TowerTraining) -> str:
    """Why a model is refused whose tower is trained and was not examined, in words; nothing of another model."""
    for tower in towers:
        if tower.unexamined and not all(tower.frozen(training, projection=part) for part in (False, True)):
            parts = ("audio_model",) if tower.hears else ("vision_model", "vision_projection")
            names = [f"freeze_{part}" for part in parts]
            return (
                f"the {tower.name} of {tower.unexamined}, which this run trains, was not examined: what it keeps for each image or sound "
                f"is not known; {all_of(names)} {'estimates' if len(names) == 1 else 'estimate'} the language model alone"
            )
    return ""


IMAGES = re.compile(r"(?:(\d{1,6})[x*])?(\d{1,6})x(\d{1,6})", re.ASCII)
EXAMPLE = "such as images=4x1024x1024: how many, height, width"


def tokens_of_images(text: str, towers: tuple[Tower, ...]) -> int:
    """Tokens of a sequence that images become: "4x1024x1024", "1024x768", "2x512x512+1024x768". Raises ConfigError for other words, and
    for a model without a vision tower that is counted."""
    eye = next((tower.eye for tower in towers if tower.eye is not None), None)
    if eye is None and (foreign := next((tower for tower in towers if tower.unexamined), None)):
        raise ConfigError(
            f"images needs a vision tower that is counted, and nobody examined the {foreign.name} of {foreign.unexamined}; leave it out"
        )
    if eye is None and any(not tower.blocks for tower in towers):
        raise ConfigError(
            "images needs the shape of the vision tower, which is not known here; give the model's config.json"
        )
    if eye is None:
        raise ConfigError("images needs a vision tower that is counted; this model has none")
    total = 0
    for part in text.replace(" ", "").split("+"):
        found = IMAGES.fullmatch(part.lower())
        if found is None or not all(int(one) for one in found.groups() if one is not None):
            raise ConfigError(f"images={shown(text)} is not understood; give sizes in pixels, {EXAMPLE}")
        height, width = int(found[2]), int(found[3])
        if min(height, width) < eye.side:
            raise ConfigError(
                f"images={shown(text)}: {height} x {width} pixels are less than a token's {eye.side} x {eye.side}, {EXAMPLE}"
            )
        total += int(found[1] or 1) * eye.tokens(height, width)
    return total


def counted(towers: tuple[Tower, ...]) -> tuple[Tower, ...]:
    """Those whose parameters are known."""
    return tuple(tower for tower in towers if tower.blocks)


def lacking(towers: tuple[Tower, ...], training: TowerTraining | None = None) -> str:
    """What no figure of a model with towers has, as a clause; nothing of a model without."""
    held = training or TowerTraining()
    found = [(tower, said) for tower in towers if (said := tower.lacks(held))]
    if not found:
        return ""
    alone = "" if counted(towers) else "the language model alone: "
    several = len(found) > 1 or bool(found[0][0].blocks)
    clause = f"{alone}{all_of(said for _, said in found)} {'are' if several else 'is'} not counted"
    options = dict.fromkeys(tower.asks for tower, _ in found if tower.sees)
    return f"{clause}; {all_of(options)} {'counts' if len(options) == 1 else 'count'} them" if options else clause
