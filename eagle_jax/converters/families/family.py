"""The description of a family of targets for readers and writers of `config.json`: one row of data."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from eagle_jax.configs.target import Experts, LlamaConfig

Entries = Mapping[str, Any]

SILU: Mapping[str, tuple[Any, ...]] = {"hidden_act": ("silu", "swish")}

# Values of `layer_types`.
FULL, WINDOWED, LINEAR, CHUNKED = "full_attention", "sliding_attention", "linear_attention", "chunked_attention"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """A family of targets: one `model_type` of transformers.

    Attributes:
        title: the models, as people call them.
        differs: what is not as in Llama, in a sentence.
        architecture: the one class with an output matrix.
        composite: `model_type` and class of models whose config holds this one as its `text_config`, next to parts that
            read no text; None if there are none.
        aliases: other `model_type`s of the same models.
        keys: keys of its config in addition to those that every family has.
        defaults: the values that transformers 5 takes for keys that a config leaves out.
        implied_fields: fields of `LlamaConfig` for what the family's code does and no key says.
        fixed: values that keys of its own must have.
        neutral: keys of its own that change nothing.
        rope: rotary settings that it has in addition to Llama's (`hf.rope.EXTRAS`).
        experts: reads the experts of a config, if the family has experts.
        read: reads further fields of `LlamaConfig`, for keys that are not fields themselves.
        write: returns, of a config, the keys that `read` reads.
    """

    title: str
    differs: str
    architecture: str
    composite: tuple[str, str] | None = None
    aliases: tuple[str, ...] = ()
    keys: frozenset[str] = frozenset()
    defaults: Mapping[str, Any]
    implied_fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    fixed: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=lambda: SILU)
    neutral: frozenset[str] = frozenset()
    rope: frozenset[str] = frozenset()
    experts: Callable[[Entries], Experts | None] | None = None
    read: Callable[[Entries], Mapping[str, Any]] = lambda entries: {}
    write: Callable[[LlamaConfig], Mapping[str, Any]] = lambda config: {}
