"""The part of a target's configuration for models whose layers differ in size and have inputs of their own."""

import dataclasses

_MIN_SIZES = {"head_dim": 2, "num_key_value_heads": 1, "num_kv_shared_layers": 0, "input_size": 0}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ByLayer:
    """Differences between the layers of one model (Gemma 4).

    Args:
        head_dim, num_key_value_heads: size and number of heads in layers without a window (`global_head_dim`,
            `num_global_key_value_heads`); `LlamaConfig` has size and number for layers with a window.
        keys_as_values: values of layers without a window are the keys before their norm and rotation
            (`attention_k_eq_v`).
        num_kv_shared_layers: number of last layers without keys and values of their own. Each attends to the keys and
            values of the last earlier layer of its kind, with or without a window.
        wide_mlp: the MLPs of these last layers are twice as wide (`use_double_wide_mlp`).
        input_size: size of the per-layer token embeddings (`hidden_size_per_layer_input`); 0 for none.
        input_vocab_size: number of tokens with such embeddings (`vocab_size_per_layer_input`).
        scaled: each layer's output is multiplied by a scalar parameter (`layer_scalar`).
    """

    head_dim: int
    num_key_value_heads: int
    keys_as_values: bool = False
    num_kv_shared_layers: int = 0
    wide_mlp: bool = False
    input_size: int = 0
    input_vocab_size: int = 0
    scaled: bool = True

    def __post_init__(self):
        for name, size in _MIN_SIZES.items():
            if getattr(self, name) < size:
                raise ValueError(f"{name}={getattr(self, name)} of layers without a window; expected at least {size}")
        if self.head_dim % 2:
            raise ValueError(
                f"head_dim={self.head_dim} of layers without a window is odd; rotary embedding turns pairs"
            )
        if self.input_size and self.input_vocab_size < 1:
            raise ValueError(f"embeddings by layer of {self.input_vocab_size} tokens; expected at least 1")

    def check(self, windows: list[bool]) -> None:
        """Raises ValueError if the last layers cannot share keys and values.

        Args:
            windows: whether each layer has a window.
        """
        first_shared = len(windows) - self.num_kv_shared_layers
        if first_shared < 1 or not set(windows[first_shared:]) <= set(windows[:first_shared]):
            raise ValueError(
                f"num_kv_shared_layers={self.num_kv_shared_layers} of {len(windows)} layers; expected each of them to "
                "have a layer of its kind, with a window or without one, before the first of them"
            )
