"""Configurations of draft heads."""

import dataclasses

from eagle_jax.configs.dflash import ConfidenceConfig, ConvolutionConfig, MarkovConfig, SelectorConfig
from eagle_jax.configs.head_checks import check_draft, check_mask_token, check_sizes, check_taps, check_width
from eagle_jax.configs.target import LlamaConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class EagleConfig:
    """An EAGLE-1/2 draft head: `fc(concat[embedding ; feature])`, then decoder layers, the first without input norm.

    Args:
        layers: the decoder layers, described as a Llama (`num_hidden_layers` is 1 in every published head).
            `vocab_size`, `hidden_size` are the target's.
        fc_bias: whether `fc` has a bias (config key `bias`; the tensors decide).
        draft_vocab_size: size of the draft vocabulary, for a head with its own output matrix; None if the head drafts
            every token with the target's.
        normed: a layer for multi-token prediction, trained with its target (MTP; DeepSeek-V3, section 2.2):
            embedding and feature are normed before `fc`, the first layer has its input norm, and the next step reads
            the normed output. `layers` may have any feature of the target's layers.
    """

    layers: LlamaConfig
    fc_bias: bool
    draft_vocab_size: int | None = None
    normed: bool = False

    def __post_init__(self):
        drafted = self.layers.vocab_size if self.draft_vocab_size is None else self.draft_vocab_size
        check_draft(self.layers, drafted, like_llama=not self.normed)

    @property
    def kind(self) -> str:
        """Key of `HEAD_KINDS`; every config of a head has one."""
        return "mtp" if self.normed else "eagle1"


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskConfig:
    """The mask rows of a P-EAGLE head (arXiv:2602.01469), which follow the text in place of unknown tokens.

    Args:
        token_id: token of the target's vocabulary whose embedding the mask rows read.
        num_drafted: number of draft tokens in a forward pass, as in training: the last row of the text drafts the
            first, and each mask row one more.
    """

    token_id: int
    num_drafted: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Eagle3Config:
    """An EAGLE-3 draft head: `fc` of several of the target's residual streams, then decoder layers, the first over
    `concat[embedding ; feature]`, then an output matrix of its own.

    Args:
        layers: the decoder layers, described as a Llama (`num_hidden_layers` is 1 in every published head), or with
            latent attention. `vocab_size` is the target's, everything else the draft's own.
        taps: target layers whose entering residual stream is read, counted from 0, in the order in which `fc` reads
            them (low, mid, high); the number of target layers means the last layer's output, before the final norm.
        target_hidden_size: width of the target's residual stream.
        draft_vocab_size: size of the draft vocabulary.
        norm_before_residual: the first layer adds its output to the normed feature instead of the feature.
        norm_before_fc: one RMSNorm over the concatenated taps before `fc`.
        fc_norm: an RMSNorm over each tap before `fc`.
        norm_output: the next draft step reads the output after the final norm instead of before it (EAGLE-3.1).
        own_embedding: an embedding table of its own instead of the target's.
        mask: mask rows of a P-EAGLE head, which drafts all tokens in one forward pass; None for EAGLE-3.
    """

    layers: LlamaConfig
    taps: tuple[int, ...]
    target_hidden_size: int
    draft_vocab_size: int
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    own_embedding: bool = False
    mask: MaskConfig | None = None

    def __post_init__(self):
        check_taps(self.taps, self.target_hidden_size)
        check_draft(self.layers, self.draft_vocab_size, latent=True)
        if self.mask is not None:
            check_mask_token(self.mask.token_id, self.layers.vocab_size)
            if self.mask.num_drafted < 1:
                raise ValueError(f"num_drafted={self.mask.num_drafted}; expected at least one token of a pass")
        if self.norm_before_fc and self.fc_norm:
            raise ValueError("norm_before_fc and fc_norm are both set; expected at most one norm of the taps before fc")
        if not self.own_embedding:
            check_width(self.layers.hidden_size, self.target_hidden_size, "embeddings", "its own (own_embedding)")

    @property
    def kind(self) -> str:
        return "eagle3" if self.mask is None else "peagle"


@dataclasses.dataclass(frozen=True, kw_only=True)
class MedusaConfig:
    """Medusa heads: each maps the target's final hidden state through residual blocks and its own output matrix.

    Args:
        hidden_size, vocab_size: the target's.
        num_heads: tokens drafted ahead, one a head (`medusa_num_heads`).
        num_layers: residual blocks in each (`medusa_num_layers`).
    """

    hidden_size: int
    vocab_size: int
    num_heads: int
    num_layers: int

    kind = "medusa"

    def __post_init__(self):
        check_sizes(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HydraConfig:
    """Hydra heads: as Medusa's, but head k also reads the embeddings of the k + 1 tokens before its draft token.

    Args:
        hidden_size, vocab_size: the target's.
        num_heads: tokens drafted ahead, one a head (`hydra_num_heads`).
        num_layers: residual blocks in each (`hydra_num_layers`).
        prefix: a decoder layer that reads the text's final hidden states before the heads do (Hydra++,
            `hydra_head_arch` "prefix-mlp"), described as a Llama of one layer; None is the plain "mlp".
    """

    hidden_size: int
    vocab_size: int
    num_heads: int
    num_layers: int
    prefix: LlamaConfig | None = None

    kind = "hydra"

    def __post_init__(self):
        check_sizes(self)
        if self.prefix is None:
            return
        check_draft(self.prefix, self.vocab_size)
        if (self.prefix.hidden_size, self.prefix.num_hidden_layers) != (self.hidden_size, 1):
            raise ValueError(
                f"prefix has {self.prefix.num_hidden_layers} layers of width {self.prefix.hidden_size}; expected one "
                f"of width {self.hidden_size}, as wide as the heads"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DFlashConfig:
    """A DFlash draft head (arXiv:2602.06036). Its decoder layers attend from a block, the last token (the root) and
    mask tokens, to the target's residual streams.

    With a Markov and a confidence head it is DSpark (arXiv:2607.05147), with convolutions and a selector DFlash 2.

    Args:
        layers: the decoder layers, described as a Llama; published heads have Qwen3's (`qk_norm`). `vocab_size` is the
            target's. Windows may differ from layer to layer.
        taps: target layers whose entering residual stream is read, counted from 0, in the order in which `fc` reads
            them.
        target_hidden_size: width of the target's residual stream.
        block_size: number of block positions in training, including the root's.
        mask_token_id: token of the target's vocabulary at every position after the root.
        causal_layers: layers in which a block position sees no later one, in ascending order; in the others it sees the
            whole block.
        sample_from_anchor: position k predicts the token k + 1 after the root instead of the token k after it; then a
            block drafts `block_size` tokens, not one less.
        num_target_layers: number of layers of the head's target, if known.
        draft_vocab_size: size of the draft vocabulary, for a head with its own output matrix; None if the head drafts
            every token with the target's.
        own_embedding: an embedding table of its own instead of the target's.
        own_mask_embedding: a vector of its own instead of the mask token's embedding.
        input_embedding_scale: factor of the block's embeddings.
        output_multiplier: factor of the logits.
        final_logit_softcapping: logits become `cap * tanh(logits / cap)`, after the factor; None for no cap.
        convolution: short convolutions in the layers, if any.
        markov, selector: dependence of the logits on the preceding token; at most one of the two.
        confidence: a confidence head, if any.
    """

    layers: LlamaConfig
    taps: tuple[int, ...]
    target_hidden_size: int
    block_size: int
    mask_token_id: int
    causal_layers: tuple[int, ...] = ()
    sample_from_anchor: bool = False
    num_target_layers: int | None = None
    draft_vocab_size: int | None = None
    own_embedding: bool = False
    own_mask_embedding: bool = False
    input_embedding_scale: float = 1.0
    output_multiplier: float = 1.0
    final_logit_softcapping: float | None = None
    convolution: ConvolutionConfig | None = None
    markov: MarkovConfig | None = None
    selector: SelectorConfig | None = None
    confidence: ConfidenceConfig | None = None

    def __post_init__(self):
        c = self.layers
        check_taps(self.taps, self.target_hidden_size)
        check_draft(c, c.vocab_size if self.draft_vocab_size is None else self.draft_vocab_size, one_window=False)
        if self.num_drafted < 1:
            raise ValueError(
                f"block_size={self.block_size}; expected at least {1 if self.sample_from_anchor else 2}, to draft a "
                "token"
            )
        check_mask_token(self.mask_token_id, c.vocab_size)
        inside = all(0 <= layer < c.num_hidden_layers for layer in self.causal_layers)
        if not inside or list(self.causal_layers) != sorted(set(self.causal_layers)):
            raise ValueError(
                f"causal_layers={self.causal_layers}; expected ascending layer numbers below {c.num_hidden_layers}"
            )
        if self.num_target_layers is not None and max(self.taps) > self.num_target_layers:
            raise ValueError(f"taps={self.taps} of a target of {self.num_target_layers} layers; expected no more")
        for name in ("input_embedding_scale", "output_multiplier", "final_logit_softcapping"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name}={value}; expected a positive number")
        if not self.own_embedding or self.draft_vocab_size is None:
            check_width(c.hidden_size, self.target_hidden_size, "embeddings and output matrix", "its own of both")
        _check_edges(self)

    @property
    def kind(self) -> str:
        if self.selector is not None or self.convolution is not None:
            return "dflash2"
        return "dflash" if self.markov is None and self.confidence is None else "dspark"

    @property
    def num_drafted(self) -> int:
        """Number of draft tokens of a block."""
        return self.block_size if self.sample_from_anchor else self.block_size - 1


def _check_edges(c: DFlashConfig) -> None:
    """Raises ValueError for invalid parts of DSpark and DFlash 2 heads, or an invalid combination."""
    if c.markov is not None and c.selector is not None:
        raise ValueError("markov and selector are both set; expected at most one: each tells what follows a token")
    drafted = c.layers.vocab_size if c.draft_vocab_size is None else c.draft_vocab_size
    if c.selector is not None and c.selector.top_k > drafted:
        raise ValueError(f"selector.top_k={c.selector.top_k}; expected no more than the {drafted} tokens drafted")
    if c.convolution is not None and c.layers.hidden_size % c.convolution.group_size:
        raise ValueError(
            f"convolution.group_size={c.convolution.group_size} does not divide the width {c.layers.hidden_size}"
        )
    if c.confidence is not None and c.confidence.with_markov and c.markov is None:
        raise ValueError("confidence.with_markov without a Markov head; expected one, whose embedding it reads")


def dflash_taps(layers: int) -> tuple[int, ...]:
    """Returns the taps of published DFlash heads for a target of `layers` layers: five, from 2 to `layers - 2`."""
    return tuple(2 + round(i * (layers - 4) / 4) for i in range(5))
