"""The families of targets that are read, by `model_type`."""

from collections.abc import Mapping

from eagle_jax.converters.dense_families import DENSE
from eagle_jax.converters.family import Family
from eagle_jax.converters.gemma_families import GEMMA
from eagle_jax.converters.hybrid_families import HYBRID
from eagle_jax.converters.latent_families import LATENT
from eagle_jax.converters.moe_families import MOE

FAMILIES: Mapping[str, Family] = {**DENSE, **GEMMA, **MOE, **HYBRID, **LATENT}
