"""Sections of a training run's YAML file."""

import dataclasses
from typing import Literal


def check_minimum(minimum: int, name: str, value: int | None) -> None:
    if value is not None and value < minimum:
        raise ValueError(f"{name}={value}; expected {minimum} or more")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The conversations.

    Args:
        train: files with training conversations.
        held_out: files with held-out conversations; by default `held_out_share` of the training conversations.
        limit: maximum number of conversations to read from `train`.
        length: tokens per row, and the maximum length of a conversation.
        over_long: whether longer conversations are dropped or cut to `length`.
        pack: whether several conversations share a row.
        chat_template: file with a Jinja template, for a tokenizer that has none.
    """

    train: tuple[str, ...]
    held_out: tuple[str, ...] = ()
    held_out_share: float = 0.05
    limit: int | None = None
    length: int = 2048
    over_long: Literal["drop", "cut"] = "drop"
    pack: bool = True
    chat_template: str | None = None

    def __post_init__(self):
        if not self.train:
            raise ValueError("data.train names no file; give at least one")
        if not 0 < self.held_out_share < 1:
            raise ValueError(f"data.held_out_share={self.held_out_share}; expected a share between 0 and 1")
        check_minimum(3, "data.length", self.length)
        check_minimum(1, "data.limit", self.limit)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """The head that is trained.

    Args:
        method: the method, which sets the published defaults of `objective` and `optimizer`; eagle1 heads also serve
            EAGLE-2. `objective.steps` is the number of heads for medusa and hydra, of trained block positions for
            dflash, dspark and dflash2, and of tokens drafted in one pass for peagle.
        intermediate_size: width of the MLP; the target's by default.
        num_attention_heads, num_key_value_heads: attention heads; the target's by default, and for a target with latent
            attention as many heads of size 128 as fill its width, with 8 key/value heads. For a small target, fewer
            heads make drafting cheaper.
        layers: number of decoder layers, or of residual blocks in each head (medusa, hydra).
        prefix: whether a decoder layer precedes the heads, as in Hydra++ (hydra).
        bias: whether `fc` has a bias (eagle1).
        taps: target layers whose input residual stream is read (all but eagle1, medusa and hydra); the published choice
            by default.
        block_size: block size, with the anchor (dflash, dspark, dflash2); 16, 7 and 8 by default.
        mask_token_id: token of the other block positions (dflash, dspark, dflash2) or of mask rows (peagle), which
            require it; it should not occur in texts.
        causal: whether attention within a block is causal, as in JetSpec (dflash).
        window: attention window (dflash, dspark, dflash2); none by default, 2048 for dflash2.
        markov_rank, markov: rank of the Markov head, 256 by default, and its kind: vanilla, gated or rnn (dspark).
        confidence: whether there is a confidence head, by default yes (dspark).
        conv_kernel_size, conv_group_size: kernel size of the short convolution, 2 by default, and number of channels
            that share a kernel, 16 (dflash2).
        selector_rank, selector_top_k: rank of the selector, 256 by default, and number of its candidates, 16 (dflash2).
        fc_norm, norm_output: the norms of EAGLE-3.1 (eagle3; fc_norm also for peagle).
        draft_vocab_size: size of the draft vocabulary, the most frequent tokens of answers; all tokens by default.
        start: folder of an earlier head of the same method to continue from, with its sizes. With `draft_vocab_size`,
            an eagle1 head without a draft vocabulary gets one.
    """

    method: Literal["eagle1", "eagle3", "peagle", "dflash", "dspark", "dflash2", "medusa", "hydra"] = "eagle1"
    intermediate_size: int | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    layers: int = 1
    prefix: bool = False
    bias: bool = True
    taps: tuple[int, ...] | None = None
    block_size: int | None = None
    mask_token_id: int | None = None
    causal: bool = False
    window: int | None = None
    markov_rank: int | None = None
    markov: Literal["vanilla", "gated", "rnn"] | None = None
    confidence: bool | None = None
    conv_kernel_size: int | None = None
    conv_group_size: int | None = None
    selector_rank: int | None = None
    selector_top_k: int | None = None
    fc_norm: bool = False
    norm_output: bool = False
    draft_vocab_size: int | None = None
    start: str | None = None

    def __post_init__(self):
        check_minimum(1, "head.layers", self.layers)
        check_minimum(0, "head.mask_token_id", self.mask_token_id)
        for name in (*_SIZES, "block_size", *_LAYER_SIZES):
            check_minimum(1, f"head.{name}", getattr(self, name))
        check_minimum(1, "head.draft_vocab_size", self.draft_vocab_size)
        if self.start is not None and self.draft_vocab_size is not None and self.method != "eagle1":
            raise ValueError(
                f"head.start and head.draft_vocab_size are both set with method {self.method}; expected eagle1, since "
                "other earlier heads keep their vocabulary"
            )
        if self.method in ("medusa", "hydra") and self.draft_vocab_size is not None:
            raise ValueError(
                f"head.draft_vocab_size={self.draft_vocab_size} with method {self.method}; expected none, since its "
                "heads draft the whole vocabulary"
            )
        if not self.bias and self.method != "eagle1":
            raise ValueError(f"head.bias=False with method {self.method}; expected eagle1, the only method with a bias")
        if self.method == "medusa" or (self.method == "hydra" and not self.prefix):
            for name in _LAYER_SIZES:
                if (value := getattr(self, name)) is not None:
                    raise ValueError(
                        f"head.{name}={value} with method {self.method}; expected a method whose heads have decoder "
                        "layers, or hydra with head.prefix"
                    )
        for name, methods in _OF_SOME_METHODS.items():
            value = getattr(self, name)
            is_set = value is not None and (value is not False or name == "confidence")
            if is_set and self.method not in methods:
                names = " or ".join(methods)
                raise ValueError(f"head.{name} with method {self.method}; expected {names}, since no other has it")
        if self.method in _OF_SOME_METHODS["mask_token_id"] and self.mask_token_id is None and self.start is None:
            raise ValueError(
                f"method {self.method} without head.mask_token_id; expected the id of a token that no text has, "
                "such as a reserved one"
            )


BLOCKS = ("dflash", "dspark", "dflash2")
_LAYER_SIZES = ("intermediate_size", "num_attention_heads", "num_key_value_heads")
_SIZES = ("window", "markov_rank", "conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
_OF_SOME_METHODS = {
    "prefix": ("hydra",),
    "taps": ("eagle3", "peagle", *BLOCKS),
    "block_size": BLOCKS,
    "mask_token_id": ("peagle", *BLOCKS),
    "causal": ("dflash",),
    "window": BLOCKS,
    **dict.fromkeys(("markov_rank", "markov", "confidence"), ("dspark",)),
    **dict.fromkeys(("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"), ("dflash2",)),
    "fc_norm": ("eagle3", "peagle"),
    "norm_output": ("eagle3",),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeaturesConfig:
    """The target's features of the text.

    Args:
        folder: folder in which features are stored; without it, the target computes them in every update.
        dtype: dtype of stored features; by default the dtype in which they are computed, which is lossless.
    """

    folder: str | None = None
    dtype: Literal["float32", "bfloat16", "float16"] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """The optimizer and its schedule; the defaults are those of the published EAGLE-1 training.

    Args:
        name: adamw, or muon (Muon for matrices, AdamW for the rest).
        rate: peak learning rate.
        betas: decay rates of AdamW's two moments.
        weight_decay: decoupled weight decay, on all parameters.
        warmup: number of updates in which the rate rises from 0 to its peak.
        decay: schedule from the peak to the last update.
        final: final rate as a share of the peak (linear and cosine).
        clip: whether `clip_at` limits each element of the gradient, its global norm, or nothing.
    """

    name: Literal["adamw", "muon"] = "adamw"
    rate: float = 3e-5
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.01
    warmup: int = 2000
    decay: Literal["linear", "cosine", "constant"] = "linear"
    final: float = 0.0
    clip: Literal["value", "norm", "none"] = "value"
    clip_at: float = 0.5

    def __post_init__(self):
        if self.rate <= 0 or self.clip_at <= 0:
            raise ValueError(f"optimizer: rate={self.rate} and clip_at={self.clip_at} must be above 0")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"optimizer.betas={self.betas}; expected two numbers from 0 up to 1")
        if not 0 <= self.final <= 1 or self.weight_decay < 0:
            raise ValueError(f"optimizer: final={self.final} must be a share, weight_decay={self.weight_decay} not < 0")
        check_minimum(0, "optimizer.warmup", self.warmup)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Checkpoints.

    Args:
        every: updates between two checkpoints; each is evaluated on the held-out text.
        keep: number of latest checkpoints to keep, in addition to the best.
    """

    every: int = 500
    keep: int = 2

    def __post_init__(self):
        check_minimum(1, "checkpoint.every", self.every)
        check_minimum(1, "checkpoint.keep", self.keep)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """Evaluation of the head.

    Args:
        depth: number of draft steps on the held-out text.
        questions: file of questions in Spec-Bench's format, or of conversations whose first turns are questions, that
            are answered with the finished head.
        limit: maximum number of questions.
        max_new_tokens: maximum length of the answers.
        temperature: 0 is greedy.
    """

    depth: int = 5
    questions: str | None = None
    limit: int | None = None
    max_new_tokens: int = 128
    temperature: float = 0.0

    def __post_init__(self):
        check_minimum(1, "evaluation.depth", self.depth)
        check_minimum(1, "evaluation.max_new_tokens", self.max_new_tokens)
        check_minimum(1, "evaluation.limit", self.limit)
        if self.temperature < 0:
            raise ValueError(f"evaluation.temperature={self.temperature}; expected 0 (greedy) or more")
