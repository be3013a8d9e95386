"""`load`: what a folder gives, and the sentences that refuse one. What files can hold is tested with the converters."""

import dataclasses
import json
import pathlib
from types import ModuleType

import jax
import numpy as np
import pytest
from speller import DYNAMIC, END, SPELLED, SPELLER, TOKENIZER, asked

from eagle_jax.api import generate, load
from eagle_jax.converters import save_head
from eagle_jax.loading import folders as folders_module
from eagle_jax.loading import load_model
from eagle_jax.models import layout


@pytest.fixture
def bare(folders, tmp_path) -> pathlib.Path:
    """The target without its tokenizer, to be spoilt."""
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((folders[0] / name).read_bytes())
    return tmp_path


def test_a_stored_pair_gives_the_same_answers(folders):
    model = load(*folders)
    assert (model.stop_ids, model.context) == ((END,), SPELLER.context)
    result, expected = (generate(m, asked("?"), **DYNAMIC) for m in (model, SPELLER))
    assert result.text == SPELLED
    assert (result.token_ids, result.stats.steps) == (expected.token_ids, expected.stats.steps)


def test_a_model_is_shown_in_a_line(folders):
    assert repr(load(*folders)) == "Model(target=LM of 32,928 numbers, float32, context=56, head=Head)"


def test_names_may_be_text_and_the_head_may_be_left_out(folders):
    model = load(str(folders[0]))
    assert model.head is None
    assert model.tokenizer.chat_template == TOKENIZER.chat_template


def test_a_folder_without_tokenizer(bare):
    model = load(bare)
    assert model.tokenizer is None
    assert generate(model, TOKENIZER("ab")["input_ids"], max_new_tokens=3, drafter="none").text == ""


@pytest.mark.parametrize(
    "files, stop_ids",
    [
        ({"generation_config.json": {"eos_token_id": [9, 3]}}, (3, 9)),
        ({"generation_config.json": {"eos_token_id": 5}}, (5,)),
        ({"generation_config.json": {"eos_token_id": [9, -1, 9999999999]}}, (9,)),
        ({"generation_config.json": {"max_length": 5}}, (END,)),
        ({}, (END,)),
    ],
)
def test_tokens_that_end_an_answer(bare, files, stop_ids):
    for name, entries in files.items():
        (bare / name).write_text(json.dumps(entries))
    assert load(bare).stop_ids == stop_ids


def test_linear_scaling_stretches_the_context(bare):
    path = bare / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}))
    assert load(bare).context == 4 * SPELLER.context


@pytest.mark.parametrize("original, context", [(32, 128), (8, 64)])
def test_yarn_gives_the_context_that_its_config_states_or_stretches(bare, original, context):
    path = bare / "config.json"
    config = json.loads(path.read_text())
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": original}
    path.write_text(json.dumps(config | {"max_position_embeddings": 64, "rope_scaling": yarn}))
    assert load(bare).context == context


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("generation_config.json", '{"eos_token_id": [1', r"generation_config.json is not valid JSON \(Expecting"),
        ("generation_config.json", "[]", "generation_config.json holds a list; expected a JSON object"),
        (
            "generation_config.json",
            '{"eos_token_id": "2"}',
            "generation_config.json has eos_token_id '2'; expected a whole",
        ),
        (
            "tokenizer.json",
            '{"version": "1.0',
            r"the tokenizer in .* cannot be read \(.*\); copy or download its files",
        ),
    ],
)
def test_small_files_are_looked_at_before_the_weights_are_read(api: ModuleType, folders, bare, name, content, message):
    for file in folders[0].iterdir():
        (bare / file.name).write_bytes(file.read_bytes())
    (bare / name).write_text(content)
    (bare / "model.safetensors").write_bytes(b"damaged too")
    with pytest.raises(ValueError, match=message):
        api.load(bare)


def test_what_is_not_there(api: ModuleType, folders, tmp_path):
    missing = tmp_path / "missing"
    for names in ((missing,), (str(missing),), (folders[0], missing)):
        with pytest.raises(FileNotFoundError, match=f"^there is no model folder {missing}$"):
            api.load(*names)
    with pytest.raises(FileNotFoundError, match="config.json"):
        api.load(tmp_path)


def test_target_and_head_the_wrong_way_round(api: ModuleType, folders):
    with pytest.raises(ValueError, match="holds an EAGLE-1/2 head, and was given as the target; expected a model"):
        api.load(*(str(folder) for folder in folders[::-1]))
    with pytest.raises(ValueError, match="holds a target model; expected a head"):
        api.load(folders[0], folders[0])


def test_a_published_pair_by_its_name(api: ModuleType, folders, tmp_path, monkeypatch):
    """Its repositories' names lead to folders, where there are such; a head of one's own goes before the pair's."""
    monkeypatch.chdir(tmp_path)
    for name, folder in zip(("lmsys/vicuna-7b-v1.3", "yuhuili/EAGLE-Vicuna-7B-v1.3"), folders, strict=True):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).symlink_to(folder)
    pair = api.load("vicuna-7b-v1.3")
    assert pair.context == SPELLER.context and pair.head is not None
    assert api.load("vicuna-7b-v1.3", folders[1]).head is not None


def test_settings_of_a_head(api: ModuleType, folders):
    model = api.load(*folders, head_config={"rope_theta": 7.0})
    assert model.head.config.layers.rope.theta == 7.0
    with pytest.raises(ValueError, match="config.json: config key rope_tetha=7.0 is not known and may change the head"):
        api.load(*folders, head_config={"rope_tetha": 7.0})


def test_settings_of_a_target(api: ModuleType, folders):
    changes = {"rope_theta": 7.0, "max_position_embeddings": 24, "eos_token_id": [3]}
    model = api.load(*folders, target_config=changes)
    assert (model.target.config.rope.theta, model.context) == (7.0, 24)
    assert 3 in model.stop_ids
    with pytest.raises(ValueError, match="config.json: hidden_act='gelu' is not supported"):
        api.load(*folders, target_config={"hidden_act": "gelu"})
    with pytest.raises(ValueError, match="config.json: rope_tetha changes nothing, as transformers' llama does not"):
        api.load(*folders, target_config={"rope_tetha": 7.0})
    for name in ("target_config", "head_config"):
        with pytest.raises(ValueError, match=rf"{name}=\[1\]; expected entries by name"):
            api.load(*folders, **{name: [1]})


def test_a_head_of_a_loaded_tied_target_is_saved_and_loaded(tmp_path):
    """Its table is packed, and files of EAGLE-1 heads hold one."""
    model = load("toy")
    assert model.target.config.tie_word_embeddings
    params = {name: part for name, part in model.head.params.items() if name != "lm_head"}
    config = dataclasses.replace(model.head.config, draft_vocab_size=None)
    whole = dataclasses.replace(model.head, params=params, config=config, vocabulary=None)
    save_head(whole, tmp_path, format="safeailab", target=model.target)
    again = load_model.with_head(model, tmp_path)
    jax.tree.map(np.testing.assert_array_equal, layout.for_files(again.head.params), layout.for_files(params))


@pytest.fixture
def no_default(monkeypatch):
    """As users have it: no target is named in the environment, and nothing is remembered of earlier calls."""
    monkeypatch.delenv(folders_module.VARIABLE, raising=False)
    folders_module._downloaded_default.cache_clear()
    yield
    folders_module._downloaded_default.cache_clear()


def test_without_a_target_it_is_smollm2_downloaded_once(no_default, monkeypatch, capsys):
    downloads = []
    monkeypatch.setattr(folders_module, "at_hand", lambda name: bool(downloads))
    monkeypatch.setattr(folders_module, "download", downloads.append)
    assert [folders_module.default_target() for _ in range(2)] == ["smollm2-135m-instruct"] * 2
    assert downloads == ["smollm2-135m-instruct"]
    assert capsys.readouterr().err == "Downloading smollm2-135m-instruct, 93 MB, once ...\n"
    assert folders_module.default_target("eagle3") == "toy", "the shipped heads are the toy's"


def test_without_network_it_is_the_toy_and_a_line_says_so(no_default, monkeypatch, tmp_path, capsys):
    def download(name):
        raise FileNotFoundError("pip did not bring it")

    monkeypatch.setattr(folders_module, "at_hand", lambda name: False)
    monkeypatch.setattr(folders_module, "download", download)
    monkeypatch.chdir(tmp_path)
    toy = folders_module.PAIR / "target", folders_module.PAIR / "head"
    assert folders_module.folders_of(None, None) == folders_module.folders_of("toy", None) == toy
    said = "eagle-jax: pip did not bring it; the toy pair of the package answers instead"
    assert capsys.readouterr().err.splitlines()[1:] == [said]
    with pytest.raises(FileNotFoundError, match="head='my-head' without a target, and smollm2-135m-instruct cannot"):
        folders_module.folders_of(None, "my-head")
    (tmp_path / "toy").mkdir()
    assert not folders_module.is_toy("toy"), "a folder of that name goes first"


def test_the_environment_names_another_default(monkeypatch):
    monkeypatch.setenv(folders_module.VARIABLE, "some/model")
    assert folders_module.default_target() == folders_module.default_target("a/head") == "some/model"


def test_a_pair_that_is_not_here_is_not_downloaded_to_be_described(monkeypatch):
    monkeypatch.setattr(folders_module, "pair_at_hand", lambda pair: False)
    with pytest.raises(FileNotFoundError, match="llama-3.1-8b-instruct is a published pair whose model is not on this"):
        folders_module.describe("llama-3.1-8b-instruct")
