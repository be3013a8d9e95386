"""The parts of a target's configuration for token mixers other than attention by head."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeltaNet:
    """Gated DeltaNet instead of attention (Qwen3-Next, Qwen3.5).

    Args:
        layers: layers with Gated DeltaNet, in ascending order; the others have attention.
        num_key_heads, key_head_dim: heads of queries and keys, and their size.
        num_value_heads, value_head_dim: heads of values, a multiple of the key heads, and their size.
        conv_kernel: number of tokens that the convolution reads, the current one included.
        fused: one matrix gives queries, keys, values and gate, by key head, and another rate and decay (Qwen3-Next).
    """

    layers: tuple[int, ...]
    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int
    fused: bool = False

    SIZES = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")

    def __post_init__(self):
        for name in self.SIZES:
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} of linear attention; expected at least 1")
        if self.conv_kernel < 2:
            raise ValueError(f"conv_kernel={self.conv_kernel} of linear attention; expected at least 2")
        if self.num_value_heads % self.num_key_heads:
            raise ValueError(
                f"num_value_heads={self.num_value_heads} of linear attention is not a multiple of "
                f"num_key_heads={self.num_key_heads}"
            )

    @property
    def keys(self) -> int:
        """Size of all keys of a token."""
        return self.num_key_heads * self.key_head_dim

    @property
    def values(self) -> int:
        """Size of all values of a token."""
        return self.num_value_heads * self.value_head_dim

    @property
    def channels(self) -> int:
        """Number of channels of the convolution: queries, keys and values."""
        return 2 * self.keys + self.values


@dataclasses.dataclass(frozen=True, kw_only=True)
class Latent:
    """Multi-head latent attention (MLA; DeepSeek-V2, section 2.1).

    Keys and values of all heads are linear maps of one latent vector per token. The rotated part of the keys is shared
    by all heads. The cache holds the latent vector and the rotated part.

    Args:
        rank: size of the latent vector (`kv_lora_rank`).
        query_rank: size of the queries' latent vector (`q_lora_rank`); None projects queries from the input.
        plain_dim: dimensions of a query head that are not rotated (`qk_nope_head_dim`).
        value_dim: size of a value head (`v_head_dim`).
        eps: epsilon of the norms of latent vectors; in DeepSeek's code it is always 1e-6.
    """

    rank: int
    query_rank: int | None
    plain_dim: int
    value_dim: int
    eps: float = 1e-6

    def __post_init__(self):
        for name in ("rank", "query_rank", "plain_dim", "value_dim"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} of latent attention; expected at least 1")
        if self.eps <= 0:
            raise ValueError(f"eps={self.eps} of latent attention; expected a positive number")
