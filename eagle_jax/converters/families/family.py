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
        whole: `model_type` of configs that hold this one as their `text_config`, next to parts that read no text, and
            the class of such a model; None if there are none.
        also: other `model_type`s of the same models.
        keys: what its config says beyond what every family's says.
        absent: what transformers 5 takes where its config leaves a key out.
        always: what its code does and no key says, as fields of `LlamaConfig`.
        fixed: values that keys of its own must have.
        neutral: keys of its own that change nothing.
        rope: rotary settings that it reads beyond Llama's (`hf_rope.EXTRAS`).
        experts: reads its experts, if it has some.
        read: further fields of `LlamaConfig`, for keys that are not fields themselves.
        write: the keys that `read` has read, of a config.
    """

    title: str
    differs: str
    architecture: str
    whole: tuple[str, str] | None = None
    also: tuple[str, ...] = ()
    keys: frozenset[str] = frozenset()
    absent: Mapping[str, Any]
    always: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    fixed: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=lambda: SILU)
    neutral: frozenset[str] = frozenset()
    rope: frozenset[str] = frozenset()
    experts: Callable[[Entries], Experts | None] | None = None
    read: Callable[[Entries], Mapping[str, Any]] = lambda entries: {}
    write: Callable[[LlamaConfig], Mapping[str, Any]] = lambda config: {}
