"""Names of the tensors in a family's files, and the tensors that hold several parameters.

A `Joined` tensor is divided when it is read, and its parts are joined again when a folder is written.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from eagle_jax.configs.target import LlamaConfig
from eagle_jax.converters import names
from eagle_jax.converters.dividing import Part
from eagle_jax.converters.families import gemma4
from eagle_jax.converters.files import Weights

MODEL, _LAYER = "model.", "layers.{i}."


@dataclasses.dataclass(frozen=True)
class Joined:
    """A tensor that holds several parameters.

    Attributes:
        key: its name within a layer.
        parts: names of its parts in the rules (`names.Rule`), in order.
        axis: negative axis along which the parts are joined, of a matrix `[.., out, in]`.
        interleaved: the parts alternate along the axis.
        transposed: floats are `[.., in, out]`; quantized tensors never are.
        stacked: it holds the parts of all experts, numbered `{j}` in the names of parts. Such tensors are read, not
            written.
    """

    key: str
    parts: tuple[str, ...]
    axis: int = -2
    interleaved: bool = False
    transposed: bool = False
    stacked: bool = False

    def divided(self, shapes: Mapping[str, tuple[int, ...]], layer: str) -> dict[str, Part]:
        """Returns the parts in one layer, by their names there.

        Args:
            shapes: shapes of the tensors that the rules name.
        """
        ends, parts, count = 0, {}, len(self.parts)
        for number, name in enumerate(self.parts):
            size = shapes[layer + name.replace("{j}", "0")][self.axis]
            at = slice(number, None, count) if self.interleaved else slice(ends, ends + size)
            for row, key in self._rows(layer + name, shapes):
                parts[key] = Part(at, self.axis, self.transposed, row)
            ends += size
        return parts

    def _rows(self, name: str, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[int | None, str]]:
        """Yields the matrices of a stack, and their names."""
        if not self.stacked:
            yield None, name
        else:
            keys = (name.replace("{j}", str(row)) for row in itertools.count())
            yield from enumerate(itertools.takewhile(shapes.__contains__, keys))


@dataclasses.dataclass(frozen=True)
class Tensors:
    """Tensor names of a family that differ from Llama's.

    Attributes:
        renamed: Llama's names within a layer, with the layout's.
        router, correction: names of the router and of its correction bias.
        shared: names of the shared expert and of its gate.
        experts: names of the experts' matrices, with `{j}` for an expert's number if each has tensors of its own.
        joined: tensors that hold several parameters.
        unread: patterns of tensors that are not read, of multi-token prediction layers.
    """

    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    router: str = "mlp.gate"
    correction: str = "mlp.gate.e_score_correction_bias"
    shared: tuple[str, str] = ("mlp.shared_experts", "mlp.shared_expert_gate")
    experts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    joined: tuple[Joined, ...] = ()
    unread: tuple[str, ...] = ()


def _each(block: str, gate: str, up: str, down: str) -> dict[str, str]:
    """Returns the names of experts with tensors of their own."""
    return {part: f"{block}.experts.{{j}}.{name}.weight" for part, name in (("gate", gate), ("up", up), ("down", down))}


_QKV = tuple(f"self_attn.{x}_proj.weight" for x in "qkv")
_OSS = "mlp.experts."
_OSS_EXPERTS = {part: f"{_OSS}{part}_proj" for part in ("gate", "up", "down")}
_QWEN3_MOE = Tensors(experts=_each("mlp", "gate_proj", "up_proj", "down_proj"))
_MIXTRAL = Tensors(router="block_sparse_moe.gate", experts=_each("block_sparse_moe", "w1", "w3", "w2"))
_GRANITE = "block_sparse_moe."
_STACKED = (
    Joined(
        "mlp.experts.gate_up_proj", tuple(f"mlp.experts.{{j}}.{x}_proj.weight" for x in ("gate", "up")), stacked=True
    ),
    Joined("mlp.experts.down_proj", ("mlp.experts.{j}.down_proj.weight",), stacked=True),
)
_LLAMA4 = "feed_forward.experts."
_GEMMA4 = "experts."
_SHARED = "mlp.shared_expert", "mlp.shared_expert_gate"
_WITH_MTP_LAYER = dataclasses.replace(_QWEN3_MOE, unread=(r"model\.layers\.{layers}\..*",))
_MTP = (r"mtp\..*",)
# Parts of multimodal models that read no text.
_OTHER_PARTS = (
    r"(model\.)?(visual|vision_model|vision_tower|multi_modal_projector|mm_projector)\..*",
    r"(model\.)?(audio_tower|embed_vision|embed_audio|vision_embedder)\..*",
)

TENSORS: Mapping[str, Tensors] = {
    "llama": Tensors(),
    "mixtral": _MIXTRAL,
    "qwen3_moe": _QWEN3_MOE,
    "olmoe": _QWEN3_MOE,
    "glm4_moe": _WITH_MTP_LAYER,
    "deepseek_v3": _WITH_MTP_LAYER,
    "glm4_moe_lite": _WITH_MTP_LAYER,
    "qwen3_next": dataclasses.replace(_QWEN3_MOE, shared=_SHARED, joined=_STACKED, unread=_MTP),
    "qwen3_5": Tensors(unread=_MTP),
    "qwen3_5_moe": dataclasses.replace(_QWEN3_MOE, shared=_SHARED, joined=_STACKED, unread=_MTP),
    "minimax_m2": dataclasses.replace(_MIXTRAL, correction="block_sparse_moe.e_score_correction_bias"),
    "hunyuan_v1_dense": Tensors(
        renamed={"self_attn.q_norm": "self_attn.query_layernorm", "self_attn.k_norm": "self_attn.key_layernorm"}
    ),
    "phi3": Tensors(
        joined=(
            Joined("self_attn.qkv_proj.weight", _QKV),
            Joined("mlp.gate_up_proj.weight", ("mlp.gate_proj.weight", "mlp.up_proj.weight")),
        )
    ),
    "granitemoe": Tensors(
        router="block_sparse_moe.router.layer",
        experts={part: f"{_GRANITE}{part}" for part in ("gate", "up")} | {"down": f"{_GRANITE}output_linear.weight"},
        joined=(Joined(f"{_GRANITE}input_linear.weight", (f"{_GRANITE}gate", f"{_GRANITE}up")),),
    ),
    "llama4": Tensors(
        renamed={f"mlp.{part}_proj": f"feed_forward.{part}_proj" for part in ("gate", "up", "down")},
        router="feed_forward.router",
        experts={part: f"{_LLAMA4}{part}_proj" for part in ("gate", "up", "down")},
        joined=(
            Joined(f"{_LLAMA4}gate_up_proj", (f"{_LLAMA4}gate_proj", f"{_LLAMA4}up_proj"), transposed=True),
            Joined(f"{_LLAMA4}down_proj", (f"{_LLAMA4}down_proj",), transposed=True),
        ),
        shared=("feed_forward.shared_expert", "feed_forward.shared_expert_gate"),
    ),
    "gemma4": Tensors(
        router="router.proj",
        experts={part: f"{_GEMMA4}{part}_proj" for part in ("gate", "up", "down")},
        joined=(Joined(f"{_GEMMA4}gate_up_proj", (f"{_GEMMA4}gate_proj", f"{_GEMMA4}up_proj")),),
        shared=("mlp", "mlp.gate"),
    ),
    "gemma4_unified": Tensors(),
    "gpt_oss": Tensors(
        router="mlp.router",
        experts=_OSS_EXPERTS
        | {f"{part}_bias": f"{name}.bias" for part, name in _OSS_EXPERTS.items() if part != "down"}
        | {"down_bias": f"{_OSS}down_proj_bias"},
        joined=(
            Joined(f"{_OSS}gate_up_proj", (f"{_OSS}gate_proj", f"{_OSS}up_proj"), interleaved=True, transposed=True),
            Joined(
                f"{_OSS}gate_up_proj_bias",
                (f"{_OSS}gate_proj.bias", f"{_OSS}up_proj.bias"),
                axis=-1,
                interleaved=True,
            ),
            Joined(f"{_OSS}down_proj", (f"{_OSS}down_proj",), transposed=True),
        ),
    ),
}


def tensors_of(config: LlamaConfig) -> Tensors:
    """Returns the names of a model's tensors. Experts without a layout of their own are Mixtral's, or Qwen3-MoE's."""
    if config.layout == "llama" and config.experts is not None:
        return TENSORS["qwen3_moe" if config.qk_norm else "mixtral"]
    return TENSORS[config.layout]


def rules_of(config: LlamaConfig, prefix: str = MODEL) -> Iterator[names.Rule]:
    """Yields the rules for the layers' tensors, whose names begin with `prefix`."""
    tensors, path, layer = tensors_of(config), "layers_{i}/", f"{prefix}{_LAYER}"
    for rule in names.decoder_layer(prefix):
        inner, _, last = rule.key.removeprefix(layer).rpartition(".")
        yield dataclasses.replace(rule, key=f"{layer}{tensors.renamed.get(inner, inner)}.{last}")
    yield names.Rule(f"{layer}self_attn.sinks", f"{path}self_attn/sinks")
    for key, inner_path in gemma4.TENSORS.items():
        yield names.Rule(f"{layer}{key}", f"{path}{inner_path}")
    for name in ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "in_proj_qkvz", "in_proj_ba", "out_proj"):
        yield names.Rule(f"{layer}linear_attn.{name}.weight", f"{path}linear_attn/{name}/weight")
    yield names.Rule(f"{layer}linear_attn.conv1d.weight", f"{path}linear_attn/conv1d/weight")
    yield names.Rule(f"{layer}linear_attn.norm.weight", f"{path}linear_attn/norm/scale")
    for name in ("A_log", "dt_bias"):
        yield names.Rule(f"{layer}linear_attn.{name}", f"{path}linear_attn/{name}")
    if config.experts is None:
        return
    yield from names.linear(f"{layer}{tensors.router}", f"{path}mlp/gate")
    yield names.Rule(f"{layer}{tensors.correction}", f"{path}mlp/correction_bias")
    for part, name in tensors.experts.items():
        yield names.Rule(f"{layer}{name}", f"{path}mlp/experts/{part}")
    for part in ("gate_proj", "up_proj", "down_proj"):
        yield names.Rule(f"{layer}{tensors.shared[0]}.{part}.weight", f"{path}mlp/shared_experts/{part}/weight")
    yield names.Rule(f"{layer}{tensors.shared[1]}.weight", f"{path}mlp/shared_gate/weight")


def divide(weights: Weights, config: LlamaConfig, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Divides the joined tensors of the files into their parts (`Weights.divide`).

    Args:
        shapes: shapes of the tensors that the rules name.
    """
    for i in range(config.num_hidden_layers):
        divide_layer(weights, config, shapes, MODEL + _LAYER.replace("{i}", str(i)))


def divide_layer(weights: Weights, config: LlamaConfig, shapes: Mapping[str, tuple[int, ...]], layer: str) -> None:
    """Applies `divide` to one layer; `layer` is the prefix of its tensor names."""
    for joined in (*tensors_of(config).joined, *_stacks(config)):
        if layer + joined.key in weights.info:
            weights.divide(layer + joined.key, joined.divided(shapes, layer))


def parts_of(tensors: Mapping[str, Any], config: LlamaConfig, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Renames tensors from the files' names to the rules', and divides joined tensors."""
    divided = dict(tensors)
    for joined, layer in _joined(config):
        if layer + joined.key in tensors:
            tensor = divided.pop(layer + joined.key)
            divided |= {name: part.of(tensor) for name, part in joined.divided(shapes, layer).items()}
    return divided


def join(config: LlamaConfig, tensors: Iterable[tuple[str, np.ndarray]]) -> Iterator[tuple[str, np.ndarray]]:
    """Renames tensors from the names of the rules to those of the files; parts of one tensor come layer by layer."""
    written = [(joined, layer) for joined, layer in _joined(config) if not joined.stacked]
    owner = {layer + part: (joined, layer) for joined, layer in written for part in joined.parts}
    waiting: dict[str, np.ndarray] = {}
    for name, value in tensors:
        if name not in owner:
            yield name, value
            continue
        joined, layer = owner[name]
        waiting[name] = value
        if all(layer + part in waiting for part in joined.parts):
            parts = [waiting.pop(layer + part) for part in joined.parts]
            tensor = np.concatenate(parts, axis=joined.axis)
            if joined.interleaved:
                tensor = np.stack(parts, axis=tensor.ndim + joined.axis + 1).reshape(tensor.shape)
            yield layer + joined.key, np.ascontiguousarray(tensor.swapaxes(-1, -2) if joined.transposed else tensor)


def stack_of(part: str) -> str:
    """Returns the name within a layer of all experts' matrices in one tensor, as GGUF files have them."""
    return f"mlp.experts.{part}.stack"


def _stacks(config: LlamaConfig) -> Iterator[Joined]:
    experts = tensors_of(config).experts.items() if config.experts is not None else ()
    weights = ((part, name) for part, name in experts if not part.endswith("_bias"))
    return (Joined(stack_of(part), (name,), stacked="{j}" in name) for part, name in weights)


def joins(config: LlamaConfig) -> bool:
    """Returns whether files of the model hold several parameters in one tensor, other than stacked experts."""
    return not all(joined.stacked for joined in tensors_of(config).joined)


def _joined(config: LlamaConfig) -> Iterator[tuple[Joined, str]]:
    layers = [MODEL + _LAYER.replace("{i}", str(i)) for i in range(config.num_hidden_layers)]
    return ((joined, layer) for layer in layers for joined in tensors_of(config).joined)


def unread(config: LlamaConfig) -> tuple[str, ...]:
    """Returns patterns of tensors that are not read: other parts of the model, MTP layers, and unused tensors."""
    patterns = (pattern.format(layers=config.num_hidden_layers) for pattern in tensors_of(config).unread)
    return (*_OTHER_PARTS, *patterns, *gemma4.unread(config))
