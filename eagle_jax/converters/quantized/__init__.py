"""Reads published quantized weights exactly into codes, scales and minima: one module for each format.

A format finds its weights among the tensors of a folder; `group_weights` replaces the tensors of each by one entry.
A new format needs a module and a row in `FORMATS`.
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
