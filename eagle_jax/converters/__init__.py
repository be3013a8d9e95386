"""Model folders in and out: HuggingFace targets of the Llama family, and published EAGLE-1/2 heads."""

from eagle_jax.converters.describe import Description, describe
from eagle_jax.converters.eagle import load_head, save_head
from eagle_jax.converters.hf_config import config_from_hf, config_to_hf
from eagle_jax.converters.hub import resolve
from eagle_jax.converters.llama import load_target, save_target

__all__ = [
    "Description",
    "config_from_hf",
    "config_to_hf",
    "describe",
    "load_head",
    "load_target",
    "resolve",
    "save_head",
    "save_target",
]
