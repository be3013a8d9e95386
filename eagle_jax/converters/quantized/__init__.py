"""Quantized weights as they are published, read exactly into codes, scales and minima: one module for each format.

A format finds its weights among the tensors of a folder; `fold` puts each in the place of the tensors that it lies in.
Adding a format means a module like those here and a row in `FORMATS`.
"""

from eagle_jax.converters.quantized.base import Format, RawTensors, StoredWeight
from eagle_jax.converters.quantized.folding import FORMATS, Folded, checked_format, fold
from eagle_jax.converters.quantized.statement import Statement, stated_by, stated_in

__all__ = [
    "FORMATS",
    "Folded",
    "Format",
    "RawTensors",
    "Statement",
    "StoredWeight",
    "checked_format",
    "fold",
    "stated_by",
    "stated_in",
]
