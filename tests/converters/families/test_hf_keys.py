"""Every key that transformers knows is accounted for: those of its config classes, of its source, and absent ones."""

import pathlib
import re

import pytest
from test_hf_config import CHUNKED, FULL, LINEAR, WINDOWED

from eagle_jax.configs.target import Rope
from eagle_jax.converters import config_from_hf
from eagle_jax.converters.families.lookup import FAMILIES, tables_of
from eagle_jax.converters.hf.keys import split_target, transformers_defaults
from tests.converters.folders import ENTRIES

# Read in branches that no layer of the families here takes.
OF_OTHER_MODELS = {"number_of_conv_states"}


@pytest.mark.parametrize("family", FAMILIES)
def test_absent_keys_mean_what_transformers_takes(family: str):
    import transformers

    entries = {name: ENTRIES[name] for name in ("vocab_size", "intermediate_size", "num_hidden_layers")}
    entries |= {"model_type": family, "hidden_size": 128, "num_attention_heads": 32}
    if "full_attention_interval" in FAMILIES[family].keys:
        entries |= {"num_hidden_layers": 4}  # of which one has attention
    if family not in transformers.CONFIG_MAPPING:
        pytest.skip("this transformers is older than the family")
    theirs = transformers.AutoConfig.for_model(**entries)
    ours = config_from_hf(entries)
    stated = vars(ours) | (vars(ours.experts) | {"mlp_only_layers": []} if ours.experts else {})
    stated |= FAMILIES[family].write(ours)
    of_layers = {"head_dim", "num_key_value_heads"} if ours.by_layer is not None else set()
    for layer in of_layers and range(ours.num_hidden_layers):
        own, expected = ours.layer(layer), theirs.per_layer_config[layer]
        assert (own.head_dim, own.num_key_value_heads) == (expected.head_dim, expected.num_key_value_heads)
    for name, value in stated.items():
        unused = (ours.latent is not None and name == "num_key_value_heads") or name in of_layers
        if name not in ("rope", "no_rope_layers") and not unused and hasattr(theirs, name):
            expected = getattr(theirs, name)
            assert value == (128 // 32 if name == "head_dim" and expected is None else expected), name
    if family == "olmo3" and theirs.default_theta == 10_000.0:
        pytest.skip("this transformers takes 10,000 for the base of rotation; later ones 500,000, as the models have")
    by_kind = dict.fromkeys((FULL, WINDOWED, LINEAR, CHUNKED), theirs.rope_parameters) | theirs.rope_parameters
    theirs_by_layer = [by_kind[kind] for kind in getattr(theirs, "layer_types", None) or [FULL, FULL]]
    for layer, settings in enumerate(theirs_by_layer):
        rope = ours.rope_of(layer)
        assert rope is not None and (rope.theta, rope.kind) == (settings["rope_theta"], settings["rope_type"])
        for name in ("factor", "truncate", "partial_rotary_factor", "original_max_position_embeddings"):
            assert getattr(rope, name) == settings.get(name, getattr(Rope(theta=1.0), name)), name


@pytest.mark.parametrize("family", FAMILIES)
def test_every_attribute_of_transformers_own_config_is_accounted_for(family: str):
    """One that is not must have its default, whatever version of transformers adds it."""
    tables, defaults = tables_of(family), transformers_defaults(family)
    if not defaults:
        pytest.skip("this transformers is older than the family")
    other = defaults.keys() - tables.read - tables.fixed.keys() - tables.neutral
    of_the_class = ("name_or_path", "rope_parameters", "ignore_keys_at_rope_validation")
    assert all(name.startswith("_") or name in of_the_class for name in other), other
    changed = {name: "changed" for name in other}
    keys = split_target(defaults | changed, tables, family)
    assert len(keys.refused) >= len(other)
    assert not split_target({name: defaults[name] for name in other}, tables, family).refused


@pytest.mark.parametrize("family", FAMILIES)
def test_every_key_that_transformers_modeling_code_reads_is_accounted_for(family: str):
    """Its source can be read without PyTorch, and names the attributes: `config.a`, `getattr(config, "a", ...)`."""
    import transformers

    root = pathlib.Path(transformers.__file__).parent
    folder = family.removesuffix("_text")
    if not (root / "models" / folder).is_dir():
        pytest.skip("this transformers is older than the family")
    own = (root / "models" / folder / f"modeling_{folder}.py").read_text()
    if family == "gemma3_text":  # classes of the whole model with its images follow
        own = own[: own.index("class Gemma3MultiModalProjector")]
    if FAMILIES[family].composite is not None:
        others = re.compile(
            r"\w*(Vision|Audio|Multi[Mm]odal|Unfold|ForConditionalGeneration|SequenceClassification)|"
            r"(Qwen3_5|Qwen3_5Moe|Gemma4|Gemma4Unified)Model\b|Gemma4(Unified)?(PreTrainedModel|ClippableLinear)\b"
        )
        own = "\nclass ".join(part for part in own.split("\nclass ") if not others.match(part))
    shared = "".join((root / file).read_text() for file in ("cache_utils.py", "masking_utils.py"))
    names = set(re.findall(r"\bconfig\.([a-z]\w*)\b(?!\()", own))
    names |= set(re.findall(r"getattr\(\s*(?:\w+\.)*\w*config,\s*\"([a-z]\w*)\"", own + shared))
    tables = tables_of(family)
    assert len(names) > 15
    assert names - tables.read - tables.fixed.keys() - tables.neutral <= OF_OTHER_MODELS
