"""Tensor names of EAGLE heads on disk: one table per spelling, read in both directions.

    EAGLE-1/2   plain      fc, layers.{i}.*             SafeAILab, SGLang, HASS
                fused      fusion_fc, transformer.*     vLLM speculators ("eagle")
    EAGLE-3     midlayer   fc, midlayer.*, norm, ...    SafeAILab, SpecForge, SGLang
                numbered   fc, layers.{i}.*, norm, ...  vLLM speculators ("eagle3", "peagle"), DeepSpec
    P-EAGLE     either, with mask_hidden

Heads are written in one of three formats, each with its spellings, the flags that its readers honour, and the number of
decoder layers that they support. A head that readers would silently misread is refused.
"""

import dataclasses
from collections.abc import Mapping

from eagle_jax.configs.heads import Eagle3Config, EagleConfig
from eagle_jax.converters.names import Rule, decoder_layer, linear, one_layer
from eagle_jax.converters.tensor_file import TensorInfo

EMBEDDING = "embed_tokens.weight"
OUTPUT = "lm_head.weight"
D2T, T2D = "d2t", "t2d"
MASK = "mask_hidden"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spelling:
    """Tensor names of one method.

    Attributes:
        eagle3: EAGLE-3, else EAGLE-1/2.
        fc, first_layer: names of `fc` and of the first layer.
        rules: the whole table.
    """

    eagle3: bool
    fc: str
    first_layer: str
    rules: tuple[Rule, ...]


def _hidden_norm(key: str) -> Rule:
    return Rule(f"{key}.hidden_norm.weight", "layers_0/hidden_norm/scale")


_LM_HEAD = Rule(OUTPUT, "lm_head/weight")
_EAGLE3_RULES = (  # all but the decoder layers'
    *linear("fc", "fc"),
    Rule("fc_norm.{i}.weight", "fc_norm_{i}/scale"),
    Rule("input_norm.weight", "input_norm/scale"),
    Rule("norm.weight", "norm/scale"),
    Rule(MASK, "mask_hidden", unit_axes=2),  # NeMo writes one unit axis
    _LM_HEAD,
    Rule(EMBEDDING, "embed_tokens/embedding"),
)

PLAIN = Spelling(
    eagle3=False, fc="fc", first_layer="layers.0", rules=(*linear("fc", "fc"), *decoder_layer(""), _LM_HEAD)
)
FUSED = Spelling(
    eagle3=False,
    fc="fusion_fc",
    first_layer="transformer",
    rules=(*linear("fusion_fc", "fc"), *one_layer("transformer", "layers_0"), _LM_HEAD),
)
MIDLAYER = Spelling(
    eagle3=True,
    fc="fc",
    first_layer="midlayer",
    rules=(*_EAGLE3_RULES, _hidden_norm("midlayer"), *one_layer("midlayer", "layers_0")),
)
NUMBERED = Spelling(
    eagle3=True,
    fc="fc",
    first_layer="layers.0",
    rules=(*_EAGLE3_RULES, _hidden_norm("layers.0"), *decoder_layer("")),
)

# Flags of an EAGLE-3 head, and of its decoder layers.
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
LAYER_FLAGS = ("attention_bias", "qkv_bias", "mlp_bias", "qk_norm", "latent")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Format:
    """A format to write heads in.

    Attributes:
        eagle1, eagle3: spellings of the tensor names.
        eagle1_flags, eagle3_flags: flags of a head or of its layers that readers of the format honour.
        eagle1_vocabulary: whether an EAGLE-1/2 head may have a draft vocabulary.
    """

    eagle1: Spelling
    eagle3: Spelling
    eagle1_flags: tuple[str, ...] = ("qkv_bias",)
    eagle3_flags: tuple[str, ...] = ()
    eagle1_vocabulary: bool = False


FORMATS: Mapping[str, Format] = {
    "safeailab": Format(eagle1=PLAIN, eagle3=MIDLAYER, eagle1_vocabulary=True),
    "sglang": Format(eagle1=PLAIN, eagle3=MIDLAYER, eagle3_flags=("fc_norm", "norm_output", "latent")),
    "speculators": Format(
        eagle1=FUSED,
        eagle3=NUMBERED,
        eagle1_flags=("attention_bias", "mlp_bias"),
        eagle3_flags=(*FLAGS, "mask", "attention_bias", "mlp_bias", "qk_norm"),
    ),
}


def format_named(name: str) -> Format:
    """Returns the format of this name. Raises ValueError if there is none."""
    if name not in FORMATS:
        raise ValueError(f"format {name!r} is not known; expected one of {', '.join(FORMATS)}")
    return FORMATS[name]


def default_format(config: EagleConfig | Eagle3Config) -> str:
    """Returns the first format of `FORMATS` whose readers can run the head. Raises ValueError if there is none."""
    *others, last = FORMATS
    for name in others:
        try:
            check_expressible(name, config)
        except ValueError:
            continue
        return name
    check_expressible(last, config)
    return last


def check_expressible(name: str, config: EagleConfig | Eagle3Config) -> None:
    """Raises ValueError for a head that readers of the format would misread."""
    layout, layers = FORMATS[name], config.layers
    is_eagle3 = isinstance(config, Eagle3Config)
    spelling = layout.eagle3 if is_eagle3 else layout.eagle1
    if layers.num_hidden_layers > 1 and not spelling.first_layer.endswith(".0"):
        raise ValueError(
            f"the head has {layers.num_hidden_layers} decoder layers; the {name} format has a name for one"
        )
    if not is_eagle3 and config.draft_vocab_size is not None and not layout.eagle1_vocabulary:
        raise ValueError(
            f"the {name} format has no draft vocabulary for EAGLE-1/2 heads; save the head as it was before it was "
            "trimmed, or in the safeailab format"
        )
    supported_flags = layout.eagle3_flags if is_eagle3 else layout.eagle1_flags
    for flag in (*FLAGS, "mask", *LAYER_FLAGS):
        if (getattr(config, flag, False) or getattr(layers, flag, False)) and flag not in supported_flags:
            hint = _format_hint(flag, is_eagle3)
            raise ValueError(f"readers of the {name} format know no {flag} and would run another head{hint}")


def _format_hint(flag: str, is_eagle3: bool) -> str:
    """Returns the end of an error message: the formats that support the flag, if any."""
    formats = [name for name, f in FORMATS.items() if flag in (f.eagle3_flags if is_eagle3 else f.eagle1_flags)]
    return f"; save it as {' or '.join(formats)}" if formats else ""


def spelling_of(info: Mapping[str, TensorInfo]) -> Spelling | None:
    """Returns the spelling of a head's tensor names; None if the tensors are not an EAGLE head's.

    Raises:
        ValueError: two spellings at once.
    """
    spellings = [s for s in (FUSED, MIDLAYER, NUMBERED) if _any_begins(info, f"{s.first_layer}.self_attn.")]
    if len(spellings) > 1:
        first, second, *_ = (spelling.first_layer for spelling in spellings)
        raise ValueError(f"the weights hold both {first}.* and {second}.*, names of two formats; expected one")
    if not spellings:
        return MIDLAYER if D2T in info else None
    if spellings == [NUMBERED]:
        return NUMBERED if _is_eagle3_layer(info) else PLAIN
    return spellings[0]


def _is_eagle3_layer(info: Mapping[str, TensorInfo]) -> bool:
    """Returns whether the first layer is EAGLE-3's: attention reads two concatenated vectors, or `fc` three."""

    def shape(key: str) -> tuple[int, ...]:
        return info[key].shape if key in info and len(info[key].shape) == 2 else (1, 0)

    (rows, columns), (_, width) = shape("fc.weight"), shape("layers.0.self_attn.q_proj.weight")
    return "layers.0.hidden_norm.weight" in info or width == 2 * rows or columns == 3 * rows


def _any_begins(info: Mapping[str, TensorInfo], prefix: str) -> bool:
    return any(key.startswith(prefix) for key in info)
