"""Changes of a config that leave a fact of its family out."""

import dataclasses
from collections.abc import Callable
from typing import Any

from eagle_jax.configs.facts import FamilyFacts
from eagle_jax.configs.target import LlamaConfig

Change = Callable[[LlamaConfig], LlamaConfig]


def llamas(*names: str) -> Change:
    """Facts as in Llama."""
    return lambda config: dataclasses.replace(config, **{name: FamilyFacts.of_llama()[name] for name in names})


def plain(**changes: Any) -> Change:
    """Fields of the config."""
    return lambda config: dataclasses.replace(config, **changes)


def rope(**changes: Any) -> Change:
    """Fields of its rotary embedding."""
    return lambda config: dataclasses.replace(config, rope=dataclasses.replace(config.rope, **changes))


def experts(**changes: Any) -> Change:
    """Fields of its experts."""
    assert changes

    def change(config: LlamaConfig) -> LlamaConfig:
        assert config.experts is not None
        return dataclasses.replace(config, experts=dataclasses.replace(config.experts, **changes))

    return change


def by_layer(**changes: Any) -> Change:
    """Fields of what differs between its layers."""

    def change(config: LlamaConfig) -> LlamaConfig:
        assert config.by_layer is not None
        return dataclasses.replace(config, by_layer=dataclasses.replace(config.by_layer, **changes))

    return change
