"""GGUF models in several files."""

import pathlib
import shutil

import numpy as np
import pytest

from eagle_jax.converters import describe, load_target
from tests.converters import folders
from tests.converters.folders import refused
from tests.converters.gguf.gguf_files import SIZES, own_name, stored, write

gguf = pytest.importorskip("gguf")


def parts(folder: pathlib.Path, count: int = 3) -> list[pathlib.Path]:
    """The same model in parts, as llama-gguf-split writes them: the metadata in the first, tensors in all."""
    model = folders.target(**SIZES)
    whole = folders.tensors(model)
    names = list(whole)
    paths = [folder / f"m-{number + 1:05}-of-{count:05}.gguf" for number in range(count)]
    few = {name: whole[name] for name in names[::count]}
    original, folders.tensors = folders.tensors, lambda _: few
    try:
        split = {"split.no": 0, "split.count": count, "split.tensors.count": len(names)}
        write(paths[0], model, metadata=split)
    finally:
        folders.tensors = original
    heads = model.config.num_attention_heads, model.config.num_key_value_heads
    for number, path in list(enumerate(paths))[1:]:
        writer = gguf.GGUFWriter(path, "llama")
        writer.kv_data[0].clear()  # parts after the first name no architecture
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", count)
        for name in names[number::count]:
            writer.add_tensor(own_name(name, "llama"), stored(name, whole[name], "llama", heads))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return paths


def test_all_parts_are_read_by_the_first_ones_name(tmp_path):
    first, *others = parts(tmp_path)
    model = folders.target(**SIZES)
    folders.assert_same(load_target(first), model)
    description = describe(first)
    assert description.problem is None and list(description.files) == [path.name for path in (first, *others)]


def test_missing_parts_are_named(tmp_path):
    first, second, third = parts(tmp_path)
    second.unlink()
    with refused(FileNotFoundError, "1 of the 3 parts", second.name):
        load_target(first)
    with refused(ValueError, "one of 3 parts", f"give the first of them, {first.name}"):
        load_target(third)


def test_parts_of_other_models_are_refused(tmp_path):
    first, second, third = parts(tmp_path)
    shutil.copy(second, third)
    with refused(ValueError, third.name, "part 2 by its split.no, and part 3 by its name"):
        load_target(first)
    alone = first.rename(tmp_path / "alone.gguf")
    with refused(ValueError, "alone.gguf", "NAME-00001-of-00003.gguf"):
        load_target(alone)


def test_a_part_that_changed_is_read_again(tmp_path):
    first, second, _ = parts(tmp_path)
    before = load_target(first)
    whole = np.fromfile(second, np.uint8)
    whole[:4] = 0
    whole.tofile(second)
    with refused(ValueError, second.name, "letters GGUF"):
        load_target(first)
    assert before.config.num_hidden_layers == 2
