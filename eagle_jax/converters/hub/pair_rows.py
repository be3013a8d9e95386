"""The rows of the table of known pairs: targets, and heads that were trained for them."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from eagle_jax.converters.hub.sizes import TargetSizes

SHIPPED = "eagle_jax/heads/"  # prefix of the heads that come with the package

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


_EAGLE1, _EAGLE3, _PEAGLE = "EAGLE-1/2", "EAGLE-3", "P-EAGLE"
_DFLASH, _DFLASH2, _DSPARK = "DFlash", "DFlash 2", "DSpark"
_MEDUSA, _HYDRA = "Medusa", "Hydra"

# name -> repository and dimensions; None are those of families whose dimensions `TargetSizes` does not have.
TARGETS: Mapping[str, tuple[str, TargetSizes | None]] = {
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
    "qwen3-coder-30b-a3b-instruct": ("Qwen/Qwen3-Coder-30B-A3B-Instruct", _QWEN3_30B),
    "qwen3-coder-next": ("Qwen/Qwen3-Coder-Next", None),
    "qwen3.5-4b": ("Qwen/Qwen3.5-4B", None),
    "qwen3.5-9b": ("Qwen/Qwen3.5-9B", None),
    "qwen3.5-27b": ("Qwen/Qwen3.5-27B", None),
    "qwen3.5-35b-a3b": ("Qwen/Qwen3.5-35B-A3B", None),
    "qwen3.5-122b-a10b": ("Qwen/Qwen3.5-122B-A10B", None),
    "qwen3.5-397b-a17b": ("Qwen/Qwen3.5-397B-A17B", None),
    "qwen3.6-27b": ("Qwen/Qwen3.6-27B", None),
    "qwen3.6-35b-a3b": ("Qwen/Qwen3.6-35B-A3B", None),
    "qwen3.8-27b": ("Qwen/Qwen3.8-27B", None),
    "gpt-oss-20b": ("openai/gpt-oss-20b", None),
    "gpt-oss-120b": ("openai/gpt-oss-120b", None),
    "llama-4-scout": ("meta-llama/Llama-4-Scout-17B-16E-Instruct", None),
    "llama-4-maverick": ("meta-llama/Llama-4-Maverick-17B-128E-Instruct", None),
    "kimi-k2.5": ("moonshotai/Kimi-K2.5", None),
    "kimi-k2.6": ("moonshotai/Kimi-K2.6", None),
    "glm-4.7-flash": ("zai-org/GLM-4.7-Flash", None),
    "minimax-m2.7": ("MiniMaxAI/MiniMax-M2.7", None),
    "granite-3.1-1b-a400m-instruct": ("ibm-granite/granite-3.1-1b-a400m-instruct", None),
}

_MHA_32, _MHA_40, _GQA_8 = {"kv_heads": 32}, {"kv_heads": 40}, {"kv_heads": 8}
_LLAMA3 = {"kv_heads": 8, "fc_bias": False}
_PART = {"kv_heads": 8, "drafted": 32000}

# Target, what is added to its name, the head's repository, its method and its dimensions where they are known. The
# plain name is that of EAGLE's newest. Ours comes first, then the authors' heads, then others'.
HEADS: tuple[tuple[str, str, str, str, Mapping[str, Any] | None], ...] = (
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
    ("qwen3-coder-30b-a3b-instruct", "-dflash", "z-lab/Qwen3-Coder-30B-A3B-DFlash", _DFLASH, None),
    ("qwen3-coder-30b-a3b-instruct", "-peagle", "amazon/Qwen3-Coder-30B-A3B-Instruct-P-EAGLE", _PEAGLE, None),
    ("qwen3-coder-next", "-dflash", "z-lab/Qwen3-Coder-Next-DFlash", _DFLASH, None),
    ("qwen3.5-4b", "-dflash", "z-lab/Qwen3.5-4B-DFlash", _DFLASH, None),
    ("qwen3.5-9b", "-dflash", "z-lab/Qwen3.5-9B-DFlash", _DFLASH, None),
    ("qwen3.5-27b", "-dflash", "z-lab/Qwen3.5-27B-DFlash", _DFLASH, None),
    ("qwen3.5-35b-a3b", "-dflash", "z-lab/Qwen3.5-35B-A3B-DFlash", _DFLASH, None),
    ("qwen3.5-122b-a10b", "-dflash", "z-lab/Qwen3.5-122B-A10B-DFlash", _DFLASH, None),
    ("qwen3.5-397b-a17b", "-dflash", "z-lab/Qwen3.5-397B-A17B-DFlash", _DFLASH, None),
    ("qwen3.6-27b", "-dflash", "z-lab/Qwen3.6-27B-DFlash", _DFLASH, None),
    ("qwen3.6-35b-a3b", "-dflash", "z-lab/Qwen3.6-35B-A3B-DFlash", _DFLASH, None),
    ("qwen3.6-35b-a3b", "-jetspec", "JetSpec/jetspec-Qwen3.6-35B-A3B", _DFLASH, None),
    ("qwen3.8-27b", "-dflash2", "incoai/Qwen3.8-27B-DFlash2", _DFLASH2, None),
    ("gpt-oss-20b", "", "Dogacel/specdrift-gpt-oss-20b-eagle3", _EAGLE3, None),
    ("gpt-oss-20b", "-dflash", "z-lab/gpt-oss-20b-DFlash", _DFLASH, None),
    ("gpt-oss-20b", "-jetspec", "JetSpec/jetspec-gpt-oss-20b", _DFLASH, None),
    ("gpt-oss-20b", "-peagle", "amazon/GPT-OSS-20B-P-EAGLE", _PEAGLE, None),
    ("gpt-oss-120b", "", "nvidia/gpt-oss-120b-Eagle3", _EAGLE3, None),
    ("gpt-oss-120b", "-lmsys", "lmsys/EAGLE3-gpt-oss-120b-bf16", _EAGLE3, None),
    ("gpt-oss-120b", "-specdrift", "Dogacel/specdrift-gpt-oss-120b-eagle3", _EAGLE3, None),
    ("gpt-oss-120b", "-dflash", "z-lab/gpt-oss-120b-DFlash", _DFLASH, None),
    ("gpt-oss-120b", "-peagle", "amazon/gpt-oss-120b-p-eagle", _PEAGLE, None),
    ("llama-4-scout", "", "lmsys/sglang-EAGLE3-Llama-4-Scout-17B-16E-Instruct-v1", _EAGLE3, None),
    ("llama-4-maverick", "", "nvidia/Llama-4-Maverick-17B-128E-Eagle3", _EAGLE3, None),
    ("llama-4-maverick", "-lmsys", "lmsys/sglang-EAGLE3-Llama-4-Maverick-17B-128E-Instruct-v1", _EAGLE3, None),
    ("kimi-k2.5", "-dflash", "z-lab/Kimi-K2.5-DFlash", _DFLASH, None),
    ("kimi-k2.6", "", "lightseekorg/kimi-k2.6-eagle3.1-mla", _EAGLE3, None),
    ("glm-4.7-flash", "", "thoughtworks/GLM-4.7-Flash-Eagle3", _EAGLE3, None),
    ("minimax-m2.7", "-dflash", "nvidia/MiniMax-M2.7-DFlash", _DFLASH, None),
    ("granite-3.1-1b-a400m-instruct", "", "wantsleep/granite-3.1-1b-a400m-EAGLE3", _EAGLE3, None),
    ("vicuna-7b-v1.3", "-medusa", "FasterDecoding/medusa-vicuna-7b-v1.3", _MEDUSA, None),
    ("vicuna-13b-v1.3", "-medusa", "FasterDecoding/medusa-vicuna-13b-v1.3", _MEDUSA, None),
    ("vicuna-33b-v1.3", "-medusa", "FasterDecoding/medusa-vicuna-33b-v1.3", _MEDUSA, None),
    ("vicuna-7b-v1.3", "-hydra", "ankner/hydra-vicuna-7b-v1.3", _HYDRA, None),
    ("vicuna-13b-v1.3", "-hydra", "ankner/hydra-vicuna-13b-v1.3", _HYDRA, None),
    ("vicuna-33b-v1.3", "-hydra", "ankner/hydra-vicuna-33b-v1.3", _HYDRA, None),
)
