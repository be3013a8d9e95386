"""NVIDIA's ModelOpt: FP8, and NVFP4 with a scale for each 16 inputs.

NVFP4  X.weight [out, in / 2] uint8     X.weight_scale [out, in / 16] E4M3     X.weight_scale_2 [] float32
FP8    X.weight [out, in] E4M3          X.weight_scale [] or [out] float32, or one for each block

Of two E2M1 codes in a byte the first is the lower half. W = v * (weight_scale * weight_scale_2).
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from eagle_jax.converters.quantized import fp4, fp8
from eagle_jax.converters.quantized.base import RawTensors, StoredWeight, expect, table

TITLE = "NVIDIA's ModelOpt"
ALGORITHMS = ("FP8", "NVFP4", "FP8_PB_WO", "FP8_PER_CHANNEL_PER_TOKEN", "W4A16_NVFP4", "MIXED_PRECISION", None)
BLOCK = (128, 128)  # of FP8_PB_WO


def check(entries: Mapping[str, Any]) -> None:
    """Refuses other algorithms than those of FP8 and NVFP4."""
    expect(entries, TITLE, {"quant_algo": ALGORITHMS})
    for module, layer in table(entries.get("quantized_layers")).items():
        expect(table(layer), f"{TITLE} for {module}", {"quant_algo": ALGORITHMS})


def find(tensors: RawTensors, entries: Mapping[str, Any]) -> Iterator[tuple[str, StoredWeight]]:
    """Yields every weight of E4M3, and every one of bytes with two scales."""
    for module in tensors.ending(".weight"):
        weight = f"{module}.weight"
        if tensors.info[weight].dtype == fp8.DTYPE:
            yield weight, fp8.scaled(tensors, module, BLOCK)
        elif tensors.info[weight].dtype == "uint8":
            yield weight, fp4.nvfp4(tensors, weight, f"{weight}_scale", f"{weight}_scale_2", np.multiply)
