"""The part of a target's configuration for models whose layers have different sizes and inputs of their own."""

import dataclasses

_MIN_VALUES = {"head_dim": 2, "num_key_value_heads": 1, "num_kv_shared_layers": 0, "input_size": 0}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ByLayer:
    """Per-layer settings of a model whose layers differ (Gemma 4).

    Args:
        head_dim, num_key_value_heads: size and number of heads in layers without a window (`global_head_dim`,
            `num_global_key_value_heads`); the config's own are those of layers with one.
        keys_as_values: values of layers without a window are the keys before their norm and rotation
            (`attention_k_eq_v`).
        num_kv_shared_layers: number of last layers that have no keys and values of their own. Each attends to those of
            the last layer before them that has a window if it has one.
        wide_mlp: the MLPs of those layers are twice as wide (`use_double_wide_mlp`).
        input_size: size of an embedding that each layer has of its own for each token
            (`hidden_size_per_layer_input`); 0 is none.
        input_vocab_size: tokens that have such embeddings (`vocab_size_per_layer_input`).
        scaled: a layer's output is multiplied by a number of its own (`layer_scalar`).
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
        for name, minimum in _MIN_VALUES.items():
            if getattr(self, name) < minimum:
                raise ValueError(
                    f"{name}={getattr(self, name)} of layers without a window; expected at least {minimum}"
                )
        if self.head_dim % 2:
            raise ValueError(
                f"head_dim={self.head_dim} of layers without a window is odd; rotary embedding turns pairs"
            )
        if self.input_size and self.input_vocab_size < 1:
            raise ValueError(f"embeddings by layer of {self.input_vocab_size} tokens; expected at least 1")

    def check(self, windows: list[bool]) -> None:
        """Refuses with ValueError a number of layers that cannot share keys and values.

        Args:
            windows: whether each layer has a window.
        """
        first_shared = len(windows) - self.num_kv_shared_layers
        if first_shared < 1 or not set(windows[first_shared:]) <= set(windows[:first_shared]):
            raise ValueError(
                f"num_kv_shared_layers={self.num_kv_shared_layers} of {len(windows)} layers; expected each of them to "
                "have a layer of its kind, with a window or without one, before the first of them"
            )
