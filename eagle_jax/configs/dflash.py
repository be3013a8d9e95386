"""Configurations of the parts that DSpark (arXiv:2607.05147) and DFlash 2 (z-lab/dflash) add to a DFlash head."""

import dataclasses

MARKOV_KINDS = ("vanilla", "gated", "rnn")


@dataclasses.dataclass(frozen=True)
class ConvolutionConfig:
    """Short causal convolutions within the block, before and after attention and MLP (DFlash 2).

    Args:
        kernel_size: number of block positions that a position reads, itself included.
        group_size: number of adjacent channels that share the input-dependent part of the kernel.
    """

    kernel_size: int
    group_size: int

    def __post_init__(self):
        _check_positive(self, "kernel_size", "group_size")


@dataclasses.dataclass(frozen=True)
class MarkovConfig:
    """DSpark's Markov head, which adds logits that depend on the preceding token.

    Args:
        rank: width between its two matrices.
        kind: `vanilla` reads the preceding token, `gated` also the position's output, `rnn` all preceding tokens.
    """

    rank: int
    kind: str

    def __post_init__(self):
        _check_positive(self, "rank")
        if self.kind not in MARKOV_KINDS:
            raise ValueError(f"kind={self.kind!r} of a Markov head; expected one of {', '.join(MARKOV_KINDS)}")


@dataclasses.dataclass(frozen=True)
class SelectorConfig:
    """DFlash 2's candidate selector, which rescores the best tokens of a position given the preceding token.

    Args:
        rank: width of the tokens' codes.
        top_k: number of candidates at a position; no other token is drafted there.
    """

    rank: int
    top_k: int

    def __post_init__(self):
        _check_positive(self, "rank", "top_k")


@dataclasses.dataclass(frozen=True)
class ConfidenceConfig:
    """DSpark's confidence head, which predicts the probability that a position's token is accepted.

    Args:
        with_markov: it reads the Markov head's embedding of the preceding token as well as the position's output.
    """

    with_markov: bool


def _check_positive(config: ConvolutionConfig | MarkovConfig | SelectorConfig, *names: str) -> None:
    for name in names:
        if getattr(config, name) < 1:
            raise ValueError(f"{name}={getattr(config, name)} in a {type(config).__name__}; expected at least 1")
