"""Tensors and `config.json` keys of the edge modules (`models.edges`), which DFlash 2 and DSpark heads add to DFlash.

    DFlash2DraftModel     layers.{i}.{attention,mlp}_conv.{base_kernel, kernel_projection.weight}
                          candidate_selector.{hidden_projection.weight, predecessor_codebook, successor_codebook}
                          in `dflash_config`: conv_kernel_size, conv_group_size, selector_rank, selector_top_k
    Qwen3DSparkModel      markov_head.{markov_w1, markov_w2}.weight, gate_proj or joint_proj, confidence_head.proj
    DSparkDraftModel      markov_rank, markov_head_type, enable_confidence_head, confidence_head_with_markov

DeepSpec's own DSpark heads (`Qwen3DSparkModel`) contain their embedding and output matrix, and have these keys at the
top level of the config; SpecForge's (`DSparkDraftModel`) share the target's, with the keys in `dflash_config`. Older
SpecForge files prefix the small heads with `logit_head.`. DSpark drafts from the anchor slot; no key says so.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from eagle_jax.configs.dflash import MARKOV_KINDS, ConfidenceConfig, ConvolutionConfig, MarkovConfig, SelectorConfig
from eagle_jax.configs.heads import DFlashConfig
from eagle_jax.converters import names
from eagle_jax.converters.hf import values
from eagle_jax.converters.tensor_file import TensorInfo

DFLASH, DFLASH2 = "DFlashDraftModel", "DFlash2DraftModel"
DEEPSPEC, SPECFORGE = "Qwen3DSparkModel", "DSparkDraftModel"
METHODS: Mapping[str, str] = {DFLASH: "dflash", DFLASH2: "dflash2", DEEPSPEC: "dspark", SPECFORGE: "dspark"}

_CONVOLUTION, _SELECTOR = ("conv_kernel_size", "conv_group_size"), ("selector_rank", "selector_top_k")
_MARKOV = ("markov_rank", "markov_head_type")
_CONFIDENCE = ("enable_confidence_head", "confidence_head_with_markov")
KEYS: Mapping[str, frozenset[str]] = {
    "dflash": frozenset(),
    "dflash2": frozenset({*_CONVOLUTION, *_SELECTOR}),
    "dspark": frozenset({*_MARKOV, *_CONFIDENCE}),
}
# Training settings, and an attention mode that is the same in all heads.
IGNORED: Mapping[str, frozenset[str]] = {
    "dflash": frozenset(),
    "dflash2": frozenset(),
    "dspark": frozenset({"confidence_head_alpha", "attention_mode"}),
}
ANCHORS = 512  # what DeepSpec's reader asks for in every config; not used for drafting

_SMALL_HEAD_RULES = (
    names.Rule("markov_head.markov_w1.weight", "markov_head/markov_w1/embedding"),
    names.Rule("markov_head.markov_w2.weight", "markov_head/markov_w2/weight"),
    *names.linear("markov_head.gate_proj", "markov_head/gate_proj"),
    *names.linear("markov_head.joint_proj", "markov_head/joint_proj"),
    *names.linear("confidence_head.proj", "confidence_head/proj"),
)
_OLDER_PREFIX = "logit_head."
RULES = (
    *(
        names.Rule(f"layers.{{i}}.{part}_conv.{key}", f"layers_{{i}}/{part}_conv/{path}")
        for part in ("attention", "mlp")
        for key, path in (("base_kernel", "base_kernel"), ("kernel_projection.weight", "kernel_projection/weight"))
    ),
    names.Rule("candidate_selector.hidden_projection.weight", "candidate_selector/hidden_projection/weight"),
    # bare parameters: no `.weight` suffix
    names.Rule("candidate_selector.predecessor_codebook", "candidate_selector/predecessor_codebook"),
    names.Rule("candidate_selector.successor_codebook", "candidate_selector/successor_codebook"),
    *_SMALL_HEAD_RULES,
)


def rules_for(rules: Iterable[names.Rule], info: Mapping[str, TensorInfo]) -> tuple[names.Rule, ...]:
    """Returns the rules by which these files name their tensors."""
    if not any(name.startswith(_OLDER_PREFIX) for name in info):
        return tuple(rules)
    return tuple(
        dataclasses.replace(rule, key=_OLDER_PREFIX + rule.key) if rule in _SMALL_HEAD_RULES else rule for rule in rules
    )


def method_of(classes: Any) -> str:
    """Returns the draft method for a config's `architectures` entry.

    Raises:
        ValueError: the class is not known.
    """
    is_single_name = isinstance(classes, list) and len(classes) == 1 and isinstance(classes[0], str)
    if not is_single_name or classes[0] not in METHODS:
        raise ValueError(
            f"architectures {classes!r} are not supported; expected one of {list(METHODS)!r}: heads of other methods, "
            "such as Domino, use the same tensors but draft differently"
        )
    return METHODS[classes[0]]


def fields(method: str, edge_entries: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parts that a config of this method describes, as fields of `DFlashConfig`.

    Args:
        edge_entries: value of every key of `KEYS[method]`; None if the config has none.

    Raises:
        ValueError: a key that is needed is missing, or has another type.
    """
    if method == "dflash":
        return {}
    required_keys = KEYS[method] - {"markov_head_type", "confidence_head_with_markov"}
    for name in sorted(required_keys):
        if edge_entries[name] is None:
            raise ValueError(f"the config has no {name}; expected the one that the head was trained with")
    if method == "dflash2":
        convolution, selector = (
            [values.integer(edge_entries, name) for name in keys] for keys in (_CONVOLUTION, _SELECTOR)
        )
        return {"convolution": ConvolutionConfig(*convolution), "selector": SelectorConfig(*selector)}
    rank, kind = values.integer(edge_entries, "markov_rank"), edge_entries["markov_head_type"]
    if rank and kind not in MARKOV_KINDS:
        raise ValueError(f"markov_head_type={kind!r}; expected one of {', '.join(MARKOV_KINDS)}")
    has_confidence, with_markov = (values.flag(edge_entries, name, False) for name in _CONFIDENCE)
    if has_confidence and edge_entries[_CONFIDENCE[1]] is None:
        raise ValueError(f"the config has no {_CONFIDENCE[1]}; expected true or false with a confidence head")
    return {
        "markov": MarkovConfig(rank, kind) if rank else None,
        "confidence": ConfidenceConfig(with_markov) if has_confidence else None,
    }


def entries_for(config: DFlashConfig) -> tuple[str, dict[str, Any]]:
    """Returns the class of a head, and the keys of its parts.

    Raises:
        ValueError: no method has these parts together.
    """
    conv, selector, markov, confidence = config.convolution, config.selector, config.markov, config.confidence
    if markov is None and confidence is None:
        if conv is None and selector is None:
            return DFLASH, {}
        if conv is None or selector is None:
            raise ValueError("a DFlash 2 head on disk has convolutions and a selector; this one has one of the two")
        shapes = [conv.kernel_size, conv.group_size, selector.rank, selector.top_k]
        return DFLASH2, dict(zip((*_CONVOLUTION, *_SELECTOR), shapes, strict=True))
    if conv is not None or selector is not None:
        raise ValueError("a head on disk is DSpark's or DFlash 2's; this one has parts of both")
    if not config.sample_from_anchor:
        raise ValueError(
            "sample_from_anchor=False in a DSpark head; its format has only heads that draft from the anchor"
        )
    entries: dict[str, Any] = {"markov_rank": 0 if markov is None else markov.rank}
    entries |= {} if markov is None else {"markov_head_type": markov.kind}
    entries["enable_confidence_head"] = confidence is not None
    entries |= {} if confidence is None else {"confidence_head_with_markov": confidence.with_markov}
    is_deepspec = config.own_embedding and config.draft_vocab_size == config.layers.vocab_size
    return DEEPSPEC if is_deepspec else SPECFORGE, entries
