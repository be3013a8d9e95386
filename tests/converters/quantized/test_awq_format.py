"""AWQ: nibbles in AutoAWQ's order, zero points as they are."""

import numpy as np
import published
import pytest
from published import DOWN, Published

from eagle_jax.ops.quantized import QuantType

GROUP = 32
STATED = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}
# Outputs that lie in the nibbles of a word, from the lowest: AutoAWQ's order_map.
OUTPUTS = (0, 2, 4, 6, 1, 3, 5, 7)


def packed(columns: np.ndarray) -> np.ndarray:
    """Words `[rows, out / 8]` of numbers `[rows, out]`."""
    made = np.zeros((len(columns), columns.shape[1] // 8), np.uint32)
    for row, word in np.ndindex(*made.shape):
        for nibble, output in enumerate(OUTPUTS):
            made[row, word] |= np.uint32(columns[row, 8 * word + output]) << np.uint32(4 * nibble)
    return made.view(np.int32)


def published_as(zeros_of=None, dtype=np.float16):
    def publish(rng: np.random.Generator, out: int, size: int) -> Published:
        codes = rng.integers(0, 16, (out, size))
        zeros = (
            rng.integers(0, 16, (out, size // GROUP)) if zeros_of is None else np.full((out, size // GROUP), zeros_of)
        )
        scales = published.drawn_scales(rng, zeros.shape, dtype)
        tensors = {"qweight": packed(codes.T), "qzeros": packed(zeros.T), "scales": scales.T}
        return Published(tensors, published.by_group(codes, zeros, scales, np.arange(size) // GROUP))

    return publish


@pytest.mark.parametrize("dtype", [np.float16, "bfloat16"])
def test_weights_are_those_of_the_rule(tmp_path, dtype):
    folder = published.write(tmp_path, published_as(dtype=np.dtype(dtype)), STATED)
    down = published.check(folder)[DOWN]
    assert down.quant_type == QuantType(4, GROUP, has_minima=True) and down.scales.dtype == np.float32


def test_symmetric_weights_need_no_minima_and_keep_their_scales(tmp_path):
    folder = published.write(tmp_path, published_as(8), STATED | {"zero_point": False})
    down = published.check(folder)[DOWN]
    assert down.quant_type == QuantType(4, GROUP) and down.scales.dtype == np.float16
    published.changed(folder, lambda tensors: [tensors.pop(name) for name in list(tensors) if name.endswith("qzeros")])
    published.check(folder)
    other = published.write(tmp_path / "other", published_as(), STATED | {"zero_point": False})
    with pytest.raises(ValueError, match="qzeros .*other zero points than 8.*set it to true"):
        published.loaded(other)


def test_a_folder_of_the_old_tool_states_it_in_a_file_of_its_own(tmp_path):
    folder = published.write(tmp_path, published_as(), STATED)
    published.state(tmp_path, None)
    with pytest.raises(ValueError, match="quantized tensor .*qweight, and .*no quantization_config"):
        published.loaded(folder)
    side = tmp_path / "quant_config.json"
    side.write_text('{"zero_point": true, "q_group_size": 32, "w_bit": 4, "version": "GEMM"}')
    published.check(folder)
    side.write_text('{"zero_point": true, "q_group_size": 32, "w_bit": 4, "version": "GEMV"}')
    with pytest.raises(ValueError, match="quant_config.json: version='gemv' of AWQ is not read"):
        published.loaded(folder)


@pytest.mark.parametrize(
    ("end", "change"),
    [
        ("qweight", lambda x: (x >> 4 & 0x0F0F0F0F) | (x & 0x0F0F0F0F) << 4),  # nibbles the other way round
        ("qzeros", lambda x: x ^ 0x11111111),  # zero points off by one
        ("scales", lambda x: np.roll(x, 1, 0)),  # of the next group
    ],
)
def test_what_the_numbers_depend_on(tmp_path, end, change):
    folder = published.write(tmp_path, published_as(), STATED)
    assert published.depends_on(folder, end, change)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": "gemv"}, "version='gemv' of AWQ is not read; expected 'gemm'"),
        ({"version": "marlin"}, "version='marlin'"),
        ({"bits": 8}, "bits=8 of AWQ is not read; expected 4"),
        ({"modules_to_not_convert": ["down_proj"]}, "down_proj in modules_to_not_convert, and .* quantized by AWQ"),
    ],
)
def test_other_layouts_are_refused(tmp_path, changes, words):
    with pytest.raises(ValueError, match=words):
        published.loaded(published.write(tmp_path, published_as(), STATED | changes))


def test_tensors_that_do_not_fit_are_named(tmp_path):
    folder = published.write(tmp_path, published_as(), STATED)
    published.changed(folder, lambda tensors: tensors.pop(f"{DOWN}.scales"))
    with pytest.raises(ValueError, match=f"{DOWN}.qweight and no {DOWN}.scales; copy or download"):
        published.loaded(folder)


def test_a_name_that_another_begins_with_is_not_meant(tmp_path):
    stated = STATED | {"modules_to_not_convert": ["mlp.gate", "lm_head"]}
    published.check(published.write(tmp_path, published_as(), stated))
