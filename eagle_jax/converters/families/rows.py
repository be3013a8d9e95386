"""The families of targets that are read, by `model_type`."""

from collections.abc import Mapping

from eagle_jax.converters.families.dense import DENSE
from eagle_jax.converters.families.family import Family
from eagle_jax.converters.families.gemma import GEMMA
from eagle_jax.converters.families.hybrid import HYBRID
from eagle_jax.converters.families.latent import LATENT
from eagle_jax.converters.families.moe import MOE

FAMILIES: Mapping[str, Family] = {**DENSE, **GEMMA, **MOE, **HYBRID, **LATENT}
