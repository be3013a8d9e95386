"""Quantized folders with one tensor that is missing or of another dtype or shape are refused, and name the module."""

import numpy as np
import published
import pytest
import test_bitsandbytes_formats
import test_compressed_tensors_formats as compressed
import test_fp4_formats
import test_fp8_format
import test_gptq_format
import test_quantized_folders
from published import DOWN

FORMATS = test_quantized_folders.FORMATS | {
    "actorder": (compressed.packed(4, False, True), compressed.stated(symmetric=False, actorder="group")),
    "int8": (compressed.octets(sym=False), compressed.stated("int-quantized", num_bits=8, symmetric=False)),
    "NVFP4 of compressed-tensors": (test_fp4_formats.nvfp4("compressed"), test_fp4_formats.COMPRESSED),
    "MXFP4": (test_fp4_formats.mxfp4, test_fp4_formats.COMPRESSED),
    "GPTQ v2": (
        test_gptq_format.published_as(8, False, 2, True),
        test_gptq_format.STATED | {"bits": 8, "sym": False, "desc_act": True, "checkpoint_format": "gptq_v2"},
    ),
    "FP8 of a tensor": (test_fp8_format.published_as((0, 0), axes=0), test_fp8_format.WHOLE),
    "NF4": (test_bitsandbytes_formats.nf4(), test_bitsandbytes_formats.NF4),
    "NF4 double": (test_bitsandbytes_formats.nf4(nested=True), test_bitsandbytes_formats.NF4),
    "LLM.int8": (test_bitsandbytes_formats.int8, test_bitsandbytes_formats.INT8),
}
OPTIONAL = ("weight_format",)
CHANGES = {
    "missing": lambda value: None,
    "of another dtype": lambda value: np.zeros(value.shape, np.float64),
    "cut": lambda value: value[:-1] if value.ndim else np.zeros(3, value.dtype),
    "with an axis more": lambda value: value[..., None, None, None],
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", FORMATS)
def test_one_sentence_names_the_module(tmp_path, name, change):
    folder = published.write(tmp_path, *FORMATS[name], key=test_quantized_folders.key_of(name))
    whole = published.tensors_of(folder)
    parts = [part for part in whole if part.startswith(DOWN) and not part.endswith(OPTIONAL)]
    assert len(parts) >= 2
    for part in parts:
        changed = CHANGES[change](whole[part])
        tensors = {key: value for key, value in whole.items() if key != part}
        published.save(tmp_path, tensors if changed is None else tensors | {part: changed})
        with pytest.raises(ValueError, match="down_proj") as caught:
            published.loaded(folder)
        assert "\n" not in str(caught.value), part
