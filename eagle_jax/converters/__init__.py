"""Model folders in and out: HuggingFace targets of the Llama family, and draft heads in every published format."""

from eagle_jax.converters.conversion import convert
from eagle_jax.converters.describe import Description, describe
from eagle_jax.converters.families.config import config_from_hf, config_to_hf
from eagle_jax.converters.gguf.folder import convert_gguf
from eagle_jax.converters.heads.kinds import load_head, save_head
from eagle_jax.converters.hub.pairs import PAIRS, Pair, at_hand, head_folder, known_pair, resolve_pair, target_folder
from eagle_jax.converters.hub.resolving import resolve
from eagle_jax.converters.llama import from_hf_names, load_target, quant_types, save_target, target_dtype
from eagle_jax.converters.llama import read_config as target_config
from eagle_jax.converters.quantizing import quantize

__all__ = [
    "PAIRS",
    "Description",
    "Pair",
    "config_from_hf",
    "config_to_hf",
    "convert",
    "convert_gguf",
    "at_hand",
    "describe",
    "from_hf_names",
    "head_folder",
    "known_pair",
    "load_head",
    "load_target",
    "quant_types",
    "quantize",
    "resolve",
    "resolve_pair",
    "save_head",
    "save_target",
    "target_config",
    "target_folder",
    "target_dtype",
]
