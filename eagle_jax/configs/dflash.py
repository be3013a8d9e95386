"""Sizes of what DSpark (arXiv:2607.05147) and DFlash 2 (z-lab/dflash) add to a DFlash head."""

import dataclasses

MARKOV_KINDS = ("vanilla", "gated", "rnn")


@dataclasses.dataclass(frozen=True)
class ConvolutionConfig:
    """Short causal convolutions in front of attention and MLP and after them (DFlash 2), within the block.

    Args:
        kernel_size: how many slots a slot reads: itself and those before it.
        group_size: neighbouring channels that share the part of the kernel that depends on the input.
    """

    kernel_size: int
    group_size: int

    def __post_init__(self):
        _check_positive(self, "kernel_size", "group_size")


@dataclasses.dataclass(frozen=True)
class MarkovConfig:
    """A Markov head: a term of a slot's logits that depends on the previous token (DSpark).

    Args:
        rank: width between its two matrices.
        kind: `vanilla` reads the token before alone, `gated` the slot's output too, `rnn` the whole path to it.
    """

    rank: int
    kind: str

    def __post_init__(self):
        _check_positive(self, "rank")
        if self.kind not in MARKOV_KINDS:
            raise ValueError(f"kind={self.kind!r} of a Markov head; expected one of {', '.join(MARKOV_KINDS)}")


@dataclasses.dataclass(frozen=True)
class SelectorConfig:
    """A candidate selector: a term of the logits of a slot's best tokens that depends on the previous token (DFlash 2).

    Args:
        rank: width of the tokens' codes.
        top_k: candidates of a slot; no other token is drafted there.
    """

    rank: int
    top_k: int

    def __post_init__(self):
        _check_positive(self, "rank", "top_k")


@dataclasses.dataclass(frozen=True)
class ConfidenceConfig:
    """A confidence head: the probability that the token of a slot is accepted (DSpark).

    Args:
        with_markov: it reads the Markov head's embedding of the token before, with the slot's output.
    """

    with_markov: bool


def _check_positive(config: ConvolutionConfig | MarkovConfig | SelectorConfig, *names: str) -> None:
    for name in names:
        if getattr(config, name) < 1:
            raise ValueError(f"{name}={getattr(config, name)} in a {type(config).__name__}; expected at least 1")
