"""AWQ in the layout "gemm", as AutoAWQ and GPTQModel write it.

X.qweight  [in, out / 8] int32      X.qzeros  [in / g, out / 8] int32      X.scales  [in / g, out]

A word holds 8 outputs of 4 bits, output j in nibble `NIBBLES[j]`, nibble 0 the lowest. W[o, i] = (q - z) * s; the zero
point is stored as it is. With `zero_point: false` it is 8.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from eagle_jax.converters.packed import QuantizedTensor
from eagle_jax.converters.quantized.base import RawTensors, StoredWeight, Take, described, expect, group_of
from eagle_jax.converters.quantized.unpacking import SCALES, around_zero, fields, floats, with_zeros
from eagle_jax.ops.quantized import QuantType

TITLE = "AWQ"
NIBBLES = (0, 4, 1, 5, 2, 6, 3, 7)
MIDDLE = 8


def check(entries: Mapping[str, Any]) -> None:
    """Refuses other layouts than gemm and other widths than 4 bits."""
    layout = {key: entries[key].lower() for key in ("version", "format") if isinstance(entries.get(key), str)}
    expect(layout, TITLE, {"version": ("gemm",), "format": ("gemm",)})
    expect(entries, TITLE, {"bits": (4,), "w_bit": (4,), "backend": ("autoawq", "auto", None)})


def find(tensors: RawTensors, entries: Mapping[str, Any]) -> Iterator[tuple[str, StoredWeight]]:
    """Yields every weight with a `qweight`."""
    has_zeros = entries.get("zero_point", True) is not False
    for module in tensors.ending(".qweight"):
        yield f"{module}.weight", _weight(tensors, module, has_zeros)


def _weight(tensors: RawTensors, module: str, has_zeros: bool) -> StoredWeight:
    words, zeros, scales = (f"{module}.{part}" for part in ("qweight", "qzeros", "scales"))
    packed = tensors.part(words, words, ("int32",))
    scale = tensors.part(scales, words, SCALES)
    inputs, outputs = packed.shape[0], 8 * packed.shape[1]
    group = group_of(scales, scale, inputs, scale.shape[0])
    stores_zeros = has_zeros or zeros in tensors.info
    zero_shape = tensors.part(zeros, words, ("int32",)).shape if stores_zeros else (scale.shape[0], outputs // 8)
    if scale.shape[1] != outputs or zero_shape != (scale.shape[0], outputs // 8):
        raise ValueError(
            f"tensors of {module} in {packed.file} are qweight {list(packed.shape)}, qzeros {list(zero_shape)} and "
            f"scales {list(scale.shape)}; expected [in, out / 8], [in / g, out / 8] and [in / g, out] of AWQ"
        )

    def read(take: Take) -> QuantizedTensor:
        codes, scales_by_output = _columns(take(words)), np.ascontiguousarray(take(scales).T)
        if has_zeros:
            return with_zeros(codes, scales_by_output, _columns(take(zeros)))
        if stores_zeros and not np.all(_columns(take(zeros)) == MIDDLE):
            raise ValueError(
                f"tensor {zeros} in {packed.file} holds other zero points than {MIDDLE}, and the config states "
                "zero_point=false; set it to true in config.json if they are meant"
            )
        return QuantizedTensor(around_zero(codes, 4), floats(scales_by_output))

    quant_type = QuantType(4, group, has_minima=has_zeros)
    parts = (words, scales, *([zeros] if stores_zeros else []))
    return StoredWeight(info=described(packed, (outputs, inputs), quant_type), parts=parts, read=read)


def _columns(words: np.ndarray) -> np.ndarray:
    """Returns numbers `[out, rows]` of words `[rows, out / 8]`."""
    stored = fields(words, 4)
    return np.ascontiguousarray(stored.reshape(len(words), -1, 8)[..., NIBBLES].reshape(len(words), -1).T)
