"""Quantized weights as they are published, read exactly into codes, scales and minima: one module for each format.

A format finds its weights among the tensors of a folder; `group_weights` puts each in the place of its tensors.
Adding a format means a module like those here and a row in `FORMATS`.
"""

from eagle_jax.converters.quantized.base import Format, RawTensors, StoredWeight
from eagle_jax.converters.quantized.grouping import FORMATS, GroupedTensors, checked_format, group_weights
from eagle_jax.converters.quantized.statement import Statement, stated_by, stated_in

__all__ = [
    "FORMATS",
    "GroupedTensors",
    "Format",
    "RawTensors",
    "Statement",
    "StoredWeight",
    "checked_format",
    "group_weights",
    "stated_by",
    "stated_in",
]
