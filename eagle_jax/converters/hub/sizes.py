"""Counts a model's parameters and the memory of its weights from its dimensions."""

import dataclasses

from eagle_jax.configs.heads import DFlashConfig, Eagle3Config, EagleConfig, dflash_taps
from eagle_jax.configs.target import Experts, LlamaConfig, Rope

# Bytes of one parameter. int4 has a scale of four bytes for each 32 parameters; int8's scales are neglected.
BYTES = {"bf16": 2.0, "int8": 1.0, "int4": 0.5 + 4 / 32}
OUTPUT_BYTES = BYTES | {"int4": BYTES["int8"]}  # the output matrix of an int4 model is int8


@dataclasses.dataclass(frozen=True)
class Count:
    """Parameters of a model.

    Args:
        matrices: parameters of the layers' matrices, which can be quantized.
        rest: parameters of embeddings, norms and biases, which cannot.
        output: parameters of the output matrix, unless it is tied to the embedding.
    """

    matrices: int
    rest: int
    output: int = 0

    @property
    def total(self) -> int:
        return self.matrices + self.rest + self.output

    def __add__(self, other: "Count") -> "Count":
        return Count(self.matrices + other.matrices, self.rest + other.rest, self.output + other.output)

    def bytes(self, kind: str) -> float:
        """Returns the memory of the weights, with matrices in `kind` (see `BYTES`) and the rest in bfloat16."""
        return self.matrices * BYTES[kind] + self.output * OUTPUT_BYTES[kind] + self.rest * BYTES["bf16"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetSizes:
    """Dimensions of a target of the Llama family.

    Args:
        layers, hidden, intermediate, vocab: decoder layers, width, width of the MLP (of one expert), vocabulary size.
        heads, kv_heads, head_dim: query heads, key/value heads, size of one head.
        experts: experts in each layer; 0 for a dense model.
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
        vectors = 2 * self.hidden + (q + 2 * kv) * self.qkv_bias + 2 * self.head_dim * self.qk_norm
        table = self.vocab * self.hidden
        return Count(self.layers * layer, table + self.layers * vectors + self.hidden, 0 if self.tied else table)

    @property
    def config(self) -> LlamaConfig:
        """A model of these dimensions, otherwise as Llama."""
        experts = Experts(
            num_experts=max(1, self.experts),
            num_experts_per_tok=min(2, max(1, self.experts)),
            moe_intermediate_size=self.intermediate,
            norm_topk_prob=True,
        )
        return LlamaConfig(
            vocab_size=self.vocab,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_dim,
            max_position_embeddings=4096,
            rms_norm_eps=1e-5,
            rope=Rope(theta=10000.0),
            qkv_bias=self.qkv_bias,
            qk_norm=self.qk_norm,
            tie_word_embeddings=self.tied,
            experts=experts if self.experts else None,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadSizes:
    """Dimensions of a published head, with layers as wide as its target's and a number of key/value heads of its own.

    EAGLE heads have one layer, DFlash heads five layers and five taps.

    Args:
        target: dimensions of its target.
        kv_heads: key/value heads of its layers.
        fc_bias: EAGLE-1/2: whether `fc` has a bias.
        drafted: EAGLE-3: size of the draft vocabulary; None for heads that use the target's output matrix.
        block: DFlash: positions in a block.
    """

    target: TargetSizes
    kv_heads: int
    fc_bias: bool = True
    drafted: int | None = None
    block: int | None = None

    @property
    def count(self) -> Count:
        t = self.target
        h, q, kv = t.hidden, t.heads * t.head_dim, self.kv_heads * t.head_dim
        mlp_and_output = 3 * h * t.intermediate + q * h
        if self.block is not None:  # fc reads five taps; two norms, and in each layer four, two of them by head
            layer = h * (q + 2 * kv) + mlp_and_output
            return Count(5 * (h * h + layer), 2 * h + 5 * (2 * h + 2 * t.head_dim))
        if self.drafted is None:  # fc reads an embedding and a feature; one norm
            biases = (q + 2 * kv) * t.qkv_bias + h * self.fc_bias
            return Count(2 * h * h + h * (q + 2 * kv) + mlp_and_output, h + biases)
        # fc reads three taps, the layer an embedding and a feature, each normed; two more norms; an output matrix.
        return Count(3 * h * h + 2 * h * (q + 2 * kv) + mlp_and_output, 4 * h, h * self.drafted)

    @property
    def config(self) -> EagleConfig | Eagle3Config | DFlashConfig:
        """A head of these dimensions."""
        t = self.target
        if self.block is not None:
            layers = dataclasses.replace(t, layers=5, kv_heads=self.kv_heads, experts=0, tied=False, qk_norm=True)
            return DFlashConfig(
                layers=layers.config,
                taps=dflash_taps(t.layers),
                target_hidden_size=t.hidden,
                block_size=self.block,
                mask_token_id=t.vocab - 1,
            )
        one_layer = dataclasses.replace(t, layers=1, kv_heads=self.kv_heads, experts=0, tied=False, qk_norm=False)
        if self.drafted is None:
            return EagleConfig(layers=one_layer.config, fc_bias=self.fc_bias)
        taps = (2, t.layers // 2, t.layers - 3)
        config = dataclasses.replace(one_layer, qkv_bias=False).config
        return Eagle3Config(layers=config, taps=taps, target_hidden_size=t.hidden, draft_vocab_size=self.drafted)
