"""MLX's affine quantization, of matrices and embeddings.

X.weight  [out, in * b / 32] uint32     X.scales, X.biases  [out, in / g]

The first code of a word is in its lowest bits; W = q * scale + bias. `quantization` in the config states `group_size`
and `bits`, and may state others, or false, for a module by its name.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from eagle_jax.converters.packed import QuantizedTensor
from eagle_jax.converters.quantized.base import RawTensors, StoredWeight, Take, described, expect, group_of
from eagle_jax.converters.quantized.unpacking import SCALES, fields, floats
from eagle_jax.ops.quantized import QuantType

TITLE = "MLX"


def check(entries: Mapping[str, Any]) -> None:
    """Refuses other modes than affine and other widths than 4 and 8 bits."""
    modules = {name: settings for name, settings in entries.items() if isinstance(settings, Mapping)}
    for name, settings in {"": entries, **modules}.items():
        title = f"{TITLE} for {name}" if name else TITLE
        expect(settings, title, {"bits": (4, 8), "mode": ("affine",)})


def find(tensors: RawTensors, entries: Mapping[str, Any]) -> Iterator[tuple[str, StoredWeight]]:
    """Yields every weight of words with `scales`."""
    for module in tensors.ending(".scales"):
        settings = entries.get(module)
        if settings is False:
            raise ValueError(f"tensor {module}.scales is there, and the config states that {module} is not quantized")
        yield (
            f"{module}.weight",
            _weight(tensors, module, {**entries, **settings} if isinstance(settings, Mapping) else entries),
        )


def _weight(tensors: RawTensors, module: str, settings: Mapping[str, Any]) -> StoredWeight:
    words, scales, biases = (f"{module}.{part}" for part in ("weight", "scales", "biases"))
    info = tensors.part(words, scales, ("uint32",))
    scale = tensors.part(scales, words, SCALES)
    bias = tensors.part(biases, words, SCALES)
    bits, outputs = settings.get("bits", 4), info.shape[0]
    inputs = info.shape[1] * 32 // bits
    group = group_of(scales, scale, inputs, scale.shape[1])
    if scale.shape != bias.shape or scale.shape[0] != outputs or group != settings.get("group_size", group):
        raise ValueError(
            f"tensors of {module} in {info.file} are weight {list(info.shape)}, scales {list(scale.shape)} and biases "
            f"{list(bias.shape)}; expected those of {bits} bits in groups of {settings.get('group_size')}, as the "
            "config states"
        )

    def read(take: Take) -> QuantizedTensor:
        return QuantizedTensor(fields(take(words), bits), floats(take(scales)), floats(take(biases)))

    quant_type = QuantType(bits, group, has_minima=True)
    parts = (words, scales, biases)
    return StoredWeight(info=described(info, (outputs, inputs), quant_type), parts=parts, read=read)
