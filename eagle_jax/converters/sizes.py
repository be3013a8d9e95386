"""How many numbers a model holds, and how much memory they take, from its dimensions alone."""

import dataclasses

# Bytes of one number. Rounded matrices bring scales with them, a few percent more.
BYTES = {"bf16": 2.0, "int8": 1.0, "int4": 0.5}


@dataclasses.dataclass(frozen=True)
class Count:
    """Numbers in a model: those in matrices, which can be rounded to fewer bits, and embeddings, norms and biases."""

    matrices: int
    rest: int

    @property
    def total(self) -> int:
        return self.matrices + self.rest

    def __add__(self, other: "Count") -> "Count":
        return Count(self.matrices + other.matrices, self.rest + other.rest)

    def bytes(self, kind: str) -> float:
        """Memory for the weights when matrices are held in `kind` (see `BYTES`) and the rest in bfloat16."""
        return self.matrices * BYTES[kind] + self.rest * BYTES["bf16"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetSizes:
    """Dimensions of a target of the Llama family.

    Args:
        layers, hidden, intermediate, vocab: decoder layers, width, width of the MLP (of one expert), tokens.
        heads, kv_heads, head_dim: query heads, key/value heads, size of one.
        experts: in each layer; 0 for a dense model.
        tied: the output matrix is the embedding.
        qkv_bias, qk_norm: biases on q, k and v; norms of each query and key head.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    vocab: int
    head_dim: int = 128
    experts: int = 0
    tied: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False

    @property
    def count(self) -> Count:
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        layer = 2 * self.hidden * (q + kv) + 3 * self.hidden * self.intermediate * max(1, self.experts)
        layer += self.hidden * self.experts
        small = 2 * self.hidden + (q + 2 * kv) * self.qkv_bias + 2 * self.head_dim * self.qk_norm
        table = self.vocab * self.hidden
        return Count(self.layers * layer + (0 if self.tied else table), table + self.layers * small + self.hidden)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadSizes:
    """Dimensions of a published head: one layer as wide as its target's, with key/value heads of its own.

    Args:
        target: its target's.
        kv_heads: key/value heads of its layer.
        fc_bias: EAGLE-1/2: whether `fc` has a bias.
        drafted: EAGLE-3: size of the draft vocabulary; None for EAGLE-1/2, whose output matrix is the target's.
    """

    target: TargetSizes
    kv_heads: int
    fc_bias: bool = True
    drafted: int | None = None

    @property
    def count(self) -> Count:
        t = self.target
        h, q, kv = t.hidden, t.heads * t.head_dim, self.kv_heads * t.head_dim
        mlp_and_output = 3 * h * t.intermediate + q * h
        if self.drafted is None:  # fc reads an embedding and a feature; one norm
            biases = (q + 2 * kv) * t.qkv_bias + h * self.fc_bias
            return Count(2 * h * h + h * (q + 2 * kv) + mlp_and_output, h + biases)
        # fc reads three taps, the layer an embedding and a feature, each normed; two more norms; an output matrix.
        return Count(3 * h * h + 2 * h * (q + 2 * kv) + mlp_and_output + h * self.drafted, 4 * h)
