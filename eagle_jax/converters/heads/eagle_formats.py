"""Tensor names of EAGLE heads on disk: one table per spelling, read in both directions.

    EAGLE-1/2   plain      fc, layers.{i}.*             SafeAILab, SGLang, HASS
                fused      fusion_fc, transformer.*     vLLM speculators ("eagle")
    EAGLE-3     midlayer   fc, midlayer.*, norm, ...    SafeAILab, SpecForge, SGLang
                numbered   fc, layers.{i}.*, norm, ...  vLLM speculators ("eagle3", "peagle"), DeepSpec
    P-EAGLE     either, with mask_hidden

Heads are written in one of three formats. Each has its spelling, the flags that its readers honour, and the number of
decoder layers that they can run; what they would silently read as another head is refused.
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
        fc, first: what `fc` and the first layer are called.
        rules: the whole table.
    """

    eagle3: bool
    fc: str
    first: str
    rules: tuple[Rule, ...]


def _first_of_eagle3(key: str) -> Rule:
    return Rule(f"{key}.hidden_norm.weight", "layers_0/hidden_norm/scale")


_LM_HEAD = Rule(OUTPUT, "lm_head/weight")
_AROUND_EAGLE3 = (
    *linear("fc", "fc"),
    Rule("fc_norm.{i}.weight", "fc_norm_{i}/scale"),
    Rule("input_norm.weight", "input_norm/scale"),
    Rule("norm.weight", "norm/scale"),
    Rule(MASK, "mask_hidden", ones=2),  # NeMo writes one of them
    _LM_HEAD,
    Rule(EMBEDDING, "embed_tokens/embedding"),
)

PLAIN = Spelling(eagle3=False, fc="fc", first="layers.0", rules=(*linear("fc", "fc"), *decoder_layer(""), _LM_HEAD))
FUSED = Spelling(
    eagle3=False,
    fc="fusion_fc",
    first="transformer",
    rules=(*linear("fusion_fc", "fc"), *one_layer("transformer", "layers_0"), _LM_HEAD),
)
MIDLAYER = Spelling(
    eagle3=True,
    fc="fc",
    first="midlayer",
    rules=(*_AROUND_EAGLE3, _first_of_eagle3("midlayer"), *one_layer("midlayer", "layers_0")),
)
NUMBERED = Spelling(
    eagle3=True,
    fc="fc",
    first="layers.0",
    rules=(*_AROUND_EAGLE3, _first_of_eagle3("layers.0"), *decoder_layer("")),
)

# Of an EAGLE-3 head, and of its decoder layers.
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
LAYER_FLAGS = ("attention_bias", "qkv_bias", "mlp_bias", "qk_norm", "latent")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Format:
    """A format to write heads in.

    Attributes:
        eagle1, eagle3: its spellings.
        eagle1_flags, eagle3_flags: flags of a head, or of its layers, that its readers honour.
        trimmed: whether it has a place for the draft vocabulary of an EAGLE-1/2 head.
    """

    eagle1: Spelling
    eagle3: Spelling
    eagle1_flags: tuple[str, ...] = ("qkv_bias",)
    eagle3_flags: tuple[str, ...] = ()
    trimmed: bool = False


FORMATS: Mapping[str, Format] = {
    "safeailab": Format(eagle1=PLAIN, eagle3=MIDLAYER, trimmed=True),
    "sglang": Format(eagle1=PLAIN, eagle3=MIDLAYER, eagle3_flags=("fc_norm", "norm_output", "latent")),
    "speculators": Format(
        eagle1=FUSED,
        eagle3=NUMBERED,
        eagle1_flags=("attention_bias", "mlp_bias"),
        eagle3_flags=(*FLAGS, "mask", "attention_bias", "mlp_bias", "qk_norm"),
    ),
}


def named(name: str) -> Format:
    """Returns the format of this name. Raises ValueError if there is none."""
    if name not in FORMATS:
        raise ValueError(f"format {name!r} is not known; expected one of {', '.join(FORMATS)}")
    return FORMATS[name]


def plainest(config: EagleConfig | Eagle3Config) -> str:
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
    """Refuses a head that the format's readers would take for another one."""
    form, layers = FORMATS[name], config.layers
    eagle3 = isinstance(config, Eagle3Config)
    spelling = form.eagle3 if eagle3 else form.eagle1
    if layers.num_hidden_layers > 1 and not spelling.first.endswith(".0"):
        raise ValueError(
            f"the head has {layers.num_hidden_layers} decoder layers; the {name} format has a name for one"
        )
    if not eagle3 and config.draft_vocab_size is not None and not form.trimmed:
        raise ValueError(
            f"the {name} format has no draft vocabulary for EAGLE-1/2 heads; save the head as it was before it was "
            "trimmed, or in the safeailab format"
        )
    honoured = form.eagle3_flags if eagle3 else form.eagle1_flags
    for flag in (*FLAGS, "mask", *LAYER_FLAGS):
        if (getattr(config, flag, False) or getattr(layers, flag, False)) and flag not in honoured:
            instead = _where(flag, eagle3)
            raise ValueError(f"readers of the {name} format know no {flag} and would run another head{instead}")


def _where(flag: str, eagle3: bool) -> str:
    """Returns a hint at what to do instead, if there is one."""
    able = [name for name, each in FORMATS.items() if flag in (each.eagle3_flags if eagle3 else each.eagle1_flags)]
    return f"; save it as {' or '.join(able)}" if able else ""


def spelling_of(info: Mapping[str, TensorInfo]) -> Spelling | None:
    """Returns how the tensors of a head are called; None if they are not a head's.

    Raises:
        ValueError: two spellings at once.
    """
    layouts = [each for each in (FUSED, MIDLAYER, NUMBERED) if _any_begins(info, f"{each.first}.self_attn.")]
    if len(layouts) > 1:
        raise ValueError(
            f"the weights hold both {layouts[0].first}.* and {layouts[1].first}.*, names of two formats; expected one"
        )
    if not layouts:
        return MIDLAYER if D2T in info else None
    if layouts == [NUMBERED]:
        return NUMBERED if _reads_two(info) else PLAIN
    return layouts[0]


def _reads_two(info: Mapping[str, TensorInfo]) -> bool:
    """Returns whether the first layer is EAGLE-3's: its attention reads two vectors side by side, or `fc` three."""

    def shape(key: str) -> tuple[int, ...]:
        return info[key].shape if key in info and len(info[key].shape) == 2 else (1, 0)

    (rows, columns), (_, width) = shape("fc.weight"), shape("layers.0.self_attn.q_proj.weight")
    return "layers.0.hidden_norm.weight" in info or width == 2 * rows or columns == 3 * rows


def _any_begins(info: Mapping[str, TensorInfo], prefix: str) -> bool:
    return any(key.startswith(prefix) for key in info)
