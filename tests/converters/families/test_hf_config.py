"""`config.json` of targets."""

import dataclasses
import math
import pathlib
import re
from typing import Any

import pytest

from eagle_jax.configs.target import Latent, LlamaConfig, Rope
from eagle_jax.converters import config_from_hf, config_to_hf
from eagle_jax.converters.families.lookup import FAMILIES, tables_of
from eagle_jax.converters.hf.keys import split_target, transformers_defaults
from tests.converters.folders import ENTRIES, config, refused
from tests.converters.public_configs import LLAMA31, VICUNA, entries_of

QWEN2 = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
QWEN3 = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
GLM4_MOE = {"model_type": "glm4_moe", "architectures": ["Glm4MoeForCausalLM"], "moe_intermediate_size": 8}
MIXTRAL = {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": 4}
QWEN3_MOE = {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 4,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 6,
}
GEMMA2 = {"model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "hidden_act": "gelu_pytorch_tanh"}
GEMMA3 = GEMMA2 | {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"]}
MISTRAL_TINY = {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
# Read in branches that no layer of the families here takes.
OF_OTHER_MODELS = {"number_of_conv_states"}
WINDOW = {"sliding_window": 7, "use_sliding_window": True}
FULL, WINDOWED, LINEAR, CHUNKED = "full_attention", "sliding_attention", "linear_attention", "chunked_attention"
MISTRAL = entries_of("sgl-project/ome: pkg/hfutil/modelconfig/testdata/mistral")


def _seven_billion(**changes: Any) -> LlamaConfig:
    sizes: dict[str, Any] = {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-5,
        "rope": Rope(theta=10000.0),
    }
    return LlamaConfig(**sizes | changes)


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        (
            VICUNA,
            _seven_billion(
                intermediate_size=11008, num_key_value_heads=32, max_position_embeddings=2048, rms_norm_eps=1e-6
            ),
        ),
        (
            LLAMA31,
            _seven_billion(
                vocab_size=128256,
                max_position_embeddings=131072,
                rope=Rope(
                    theta=500000.0,
                    kind="llama3",
                    factor=8.0,
                    low_freq_factor=1.0,
                    high_freq_factor=4.0,
                    original_max_position_embeddings=8192,
                ),
            ),
        ),
        (MISTRAL, _seven_billion(sliding_window=4096)),
        (MISTRAL | {"sliding_window": None}, _seven_billion()),
        (MISTRAL | {"num_key_value_heads": None}, _seven_billion(num_key_value_heads=32, sliding_window=4096)),
    ],
    ids=["vicuna 1.3", "llama 3.1", "mistral 0.1", "mistral 0.2", "null heads"],
)
def test_published_configs(entries: dict[str, Any], expected: LlamaConfig):
    assert config_from_hf(entries) == expected


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


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_key_value_heads": 1, "head_dim": 6, "tie_word_embeddings": True},
        {"attention_bias": True, "mlp_bias": True},
        {"rope_theta": 3.0, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
        {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 7},
        QWEN2,
        QWEN2 | WINDOW | {"max_window_layers": 1, "tie_word_embeddings": True},
        QWEN3 | WINDOW | {"layer_types": [WINDOWED, FULL], "attention_bias": True},
        MIXTRAL,
        MIXTRAL | {"sliding_window": 7, "num_experts_per_tok": 1},
        QWEN3_MOE | {"norm_topk_prob": True, "attention_bias": True, "tie_word_embeddings": True},
        QWEN3_MOE | WINDOW | {"mlp_only_layers": [0]},
        GEMMA2,
        GEMMA2 | {"attn_logit_softcapping": None, "query_pre_attn_scalar": 5, "tie_word_embeddings": False},
        GEMMA3 | {"layer_types": [FULL, WINDOWED], "rope_local_base_freq": 3.0},
    ],
)
def test_round_trip(changes: dict[str, Any]):
    read = config(**changes)
    assert config_from_hf(config_to_hf(read)) == read


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "phi"}, ["'phi'", "llama, mistral, qwen2"]),
        ({"model_type": None}, ["model_type None"]),
        ({"architectures": ["LlamaForSequenceClassification"]}, ["LlamaForSequenceClassification", "LlamaForCausalLM"]),
        ({"hidden_act": "gelu"}, ["hidden_act='gelu'", "'silu'"]),
        ({"quantization_config": {"bits": 4}}, ["quantization_config"]),
        ({"sliding_window": 5}, ["sliding_window=5", "expected None"]),
        ({"is_causal": False}, ["is_causal=False", "expected True"]),
        ({"attention_chunk_size": 8192}, ["attention_chunk_size=8192"]),
        ({"text_config": {}}, ["text_config={}"]),
        (QWEN2 | {"layer_types": [WINDOWED, FULL]}, ["layer_types", "no sliding_window"]),
        (QWEN2 | WINDOW | {"layer_types": [WINDOWED]}, ["layer_types=['sliding_attention']", "2 layers"]),
        (QWEN2 | WINDOW | {"layer_types": ["chunked_attention", FULL]}, ["chunked_attention", "'full_attention'"]),
        (QWEN2 | {"layer_types": 2}, ["layer_types=2"]),
        (QWEN2 | WINDOW | {"layer_types": [[WINDOWED], FULL]}, ["layer_types=[['sliding_attention']"]),
        (MIXTRAL | {"num_experts_per_tok": 5}, ["num_experts_per_tok=5", "num_experts=4"]),
        (MIXTRAL | {"num_local_experts": 0}, ["num_experts=0"]),
        (QWEN3_MOE | {"num_local_experts": 8}, ["num_experts=4", "num_local_experts=8"]),
        (QWEN3_MOE | {"moe_intermediate_size": 0}, ["moe_intermediate_size=0"]),
        (QWEN3_MOE | {"mlp_only_layers": [2]}, ["mlp_only_layers", "decoder_sparse_step"]),
        (QWEN3_MOE | {"mlp_only_layers": 1}, ["mlp_only_layers=1"]),
        (QWEN3_MOE | {"decoder_sparse_step": 0}, ["decoder_sparse_step=0"]),
        (MIXTRAL | {"num_experts": 8}, ["num_experts=8", "num_local_experts=4"]),
        (GLM4_MOE | {"num_local_experts": 64}, ["n_routed_experts=128", "num_local_experts=64"]),
        (GEMMA2 | {"hidden_activation": "silu"}, ["hidden_activation='silu'"]),
        (GEMMA2 | {"use_bidirectional_attention": True}, ["use_bidirectional_attention=True"]),
        (GEMMA2 | {"final_logit_softcapping": 0.0}, ["final_logit_softcapping=0.0"]),
        ({"hidden_size": None}, ["no hidden_size"]),
        ({"hidden_size": "8"}, ["hidden_size='8'", "whole number"]),
        ({"hidden_size": 2**31}, ["hidden_size=2147483648", "below 2**31"]),
        ({"hidden_size": 9}, ["num_attention_heads=4", "hidden_size=9"]),
        ({"vocab_size": 0}, ["vocab_size=0"]),
        ({"num_key_value_heads": 3}, ["num_attention_heads=4", "num_key_value_heads=3"]),
        ({"rms_norm_eps": "1e-5"}, ["rms_norm_eps='1e-5'"]),
        ({"rms_norm_eps": float("nan")}, ["rms_norm_eps=nan"]),
        ({"rms_norm_eps": 0.0}, ["rms_norm_eps=0.0"]),
        ({"head_dim": 3}, ["head_dim=3"]),
        ({"tie_word_embeddings": "yes"}, ["tie_word_embeddings='yes'"]),
        ({"rope_scaling": {"type": "su"}}, ["'su'"]),
        (
            {"hidden_act": "gelu", "is_causal": False, "hidden_size": "8", "rope_scaling": {"type": "su"}},
            ["hidden_act='gelu'", "is_causal=False", "hidden_size='8'", "'su'"],
        ),
    ],
)
def test_refused(changes: dict[str, Any], words: list[str]):
    with refused(ValueError, *words):
        config(**changes)


@pytest.mark.parametrize(
    ("changes", "unknown"),
    [
        ({}, {"attention_multiplier": 0.5, "transformers.js_config": {"dtype": "q4"}, "is_llama_config": True}),
        ({}, {"query_pre_attn_scalar": 8, "use_sliding_window": True, "rope_interleaved": False}),
        (MISTRAL_TINY, {"attention_bias": True, "use_sliding_window": False}),
        (QWEN2, {"attention_bias": True, "mlp_bias": True}),
        (QWEN3, {"num_experts": 4, "use_qk_norm": True}),
        (QWEN3_MOE, {"shared_expert_intermediate_size": 0, "qkv_bias": False}),
        (GEMMA2, {"hidden_act": "gelu", "rope_local_base_freq": 1.0, "sliding_window_size": 4096}),
    ],
)
def test_keys_that_transformers_does_not_know_are_passed_over(changes, unknown, caplog):
    plain = {name: value for name, value in (ENTRIES | changes).items() if name not in unknown}
    assert config_from_hf(plain | unknown) == config_from_hf(plain)
    (line,) = caplog.messages
    assert line.endswith(": " + ", ".join(unknown)) and f" {changes.get('model_type', 'llama')} " in line


def test_rotary_settings_that_transformers_does_not_read_are_passed_over(caplog):
    yarn = {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 16}
    assert config(rope_scaling=yarn | {"attn_factor": 3.0}) == config(rope_scaling=yarn)
    assert config(rope_parameters={"rope_type": "default", "factor": 2.0}) == config()
    assert [line.split(": ")[1] for line in caplog.messages] == ["rope_scaling.attn_factor", "rope_parameters.factor"]


def test_code_beside_a_standard_architecture_is_not_run(caplog):
    assert config(auto_map={"AutoModelForCausalLM": "modeling.Model"}) == config()
    assert caplog.messages == ["auto_map names code that is not run; the model is transformers' own LlamaForCausalLM"]
    with refused(ValueError, "['OwnForCausalLM']"):
        config(auto_map={"AutoModelForCausalLM": "modeling.Model"}, architectures=["OwnForCausalLM"])


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
    if FAMILIES[family].whole is not None:
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


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"qkv_bias": True, "attention_bias": True}, "attention_bias"),
        ({"qkv_bias": True, "qk_norm": True}, "qk_norm"),
        ({"sliding_window": 4, "tie_word_embeddings": True, "sinks": True}, "sinks=True"),
        ({"norms": "behind", "attention_bias": True}, "norms='behind'"),
    ],
)
def test_what_transformers_cannot_say(changes: dict[str, Any], word: str):
    with refused(ValueError, word, "cannot say so"):
        config_to_hf(dataclasses.replace(config(), **changes))


@pytest.mark.parametrize(
    ("changes", "window", "full"),
    [
        ({"sliding_window": 7}, None, ()),
        (WINDOW, None, ()),  # of two layers both are below 28
        (WINDOW | {"max_window_layers": 1}, 7, (0,)),
        (WINDOW | {"max_window_layers": 0}, 7, ()),
        (WINDOW | {"layer_types": [WINDOWED, FULL]}, 7, (1,)),
        (WINDOW | {"layer_types": [FULL, FULL], "max_window_layers": 0}, None, ()),
    ],
)
def test_layers_without_a_window(changes: dict[str, Any], window: int | None, full: tuple[int, ...]):
    read = config(**QWEN2, **changes)
    assert (read.sliding_window, read.full_attention_layers) == (window, full)


def test_layers_that_are_not_there():
    for layers in ((2,), (-1,), (1, 0), (0, 0)):
        with refused(ValueError, "full_attention_layers", "0 to 1"):
            dataclasses.replace(config(), full_attention_layers=layers)


@pytest.mark.parametrize(
    ("changes", "dense"),
    [
        ({}, ()),
        ({"mlp_only_layers": [0]}, (0,)),
        ({"decoder_sparse_step": 2}, (0,)),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [1]}, (0, 1)),
    ],
)
def test_layers_without_experts(changes: dict[str, Any], dense: tuple[int, ...]):
    read = config(**QWEN3_MOE, **changes)
    assert read.experts is not None and read.experts.mlp_only_layers == dense


def test_experts_that_cannot_be_said():
    experts = config(**MIXTRAL).experts
    assert experts is not None
    with refused(ValueError, "experts.norm_topk_prob=False", "mixtral", "cannot say so"):
        config_to_hf(dataclasses.replace(config(), experts=dataclasses.replace(experts, norm_topk_prob=False)))
    with refused(ValueError, "mlp_bias=True", "experts"):
        dataclasses.replace(config(), experts=experts, mlp_bias=True)


KIMI_K2 = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "kimi_k2",
    "auto_map": {"AutoModelForCausalLM": "modeling_deepseek.DeepseekV3ForCausalLM"},
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "num_hidden_layers": 61,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "vocab_size": 163840,
    "max_position_embeddings": 131072,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_group": 1,
    "topk_group": 1,
    "n_routed_experts": 384,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "num_nextn_predict_layers": 0,
    "routed_scaling_factor": 2.827,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "seq_aux": True,
    "rope_theta": 50000.0,
    "rope_scaling": {"type": "yarn", "factor": 32.0, "beta_fast": 1.0, "beta_slow": 1.0, "mscale": 1.0}
    | {"mscale_all_dim": 1.0, "original_max_position_embeddings": 4096},
}


def test_kimi_k2():
    """Latent attention, whose scores YaRN scales; cos and sin are as they are, since both its factors are one."""
    config = config_from_hf(KIMI_K2)
    assert config.latent == Latent(rank=512, query_rank=1536, plain_dim=128, value_dim=128)
    assert (config.head_dim, config.rope.interleaved, config.rope.attention_factor) == (64, True, 1.0)
    assert config.attention_scale == pytest.approx(192**-0.5 * (0.1 * math.log(32) + 1) ** 2)
    assert config.experts is not None and config.experts.mlp_only_layers == (0,)
    assert config_from_hf(config_to_hf(config)) == config
    with refused(ValueError, "scoring_func='softmax'"):
        config_from_hf(KIMI_K2 | {"scoring_func": "softmax"})
    with refused(ValueError, "kv_lora_rank", "expected"):
        config_from_hf(KIMI_K2 | {"kv_lora_rank": "many"})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layer_types": ["linear_attention"]}, ["layer_types", "for each of 4 layers"]),
        ({"layer_types": [WINDOWED] * 4}, ["layer_types", "'linear_attention'"]),
        ({"full_attention_interval": 0}, ["full_attention_interval=0"]),
        ({"full_attention_interval": 5}, ["linear attention in all layers"]),
        ({"linear_num_value_heads": 5}, ["num_value_heads=5", "num_key_heads=16"]),
        ({"linear_conv_kernel_dim": None, "linear_key_head_dim": "wide"}, ["linear_key_head_dim"]),
    ],
)
def test_recurrent_layers_that_are_refused(changes: dict[str, Any], words: list[str]):
    entries = {key: ENTRIES[key] for key in ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads")}
    with refused(ValueError, *words):
        config_from_hf(entries | {"model_type": "qwen3_5_text", "num_hidden_layers": 4} | changes)
