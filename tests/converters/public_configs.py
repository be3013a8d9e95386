"""Public `config.json` files, from `public_configs.json`; `families/test_public_configs.py` says what a case has."""

import json
import pathlib
from typing import Any

CASES = json.loads(pathlib.Path(__file__).with_suffix(".json").read_text())

# What files have beside the facts of the model, which the cases leave out.
BOOK_KEEPING = {
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
    "initializer_range": 0.02,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.43.1",
    "use_cache": True,
}
VICUNA = {
    "_name_or_path": "vicuna-7b-v1.3",
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 11008,
    "max_position_embeddings": 2048,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-06,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "transformers_version": "4.28.1",
    "use_cache": True,
    "vocab_size": 32000,
}


def entries_of(file: str) -> dict[str, Any]:
    """The case of this file, with the usual book-keeping; what is said of quantization is left out."""
    (entries,) = (case["entries"] for case in CASES if file in case["files"])
    return BOOK_KEEPING | {key: value for key, value in entries.items() if key != "quantization_config"}


LLAMA31 = entries_of("casys-kaist/LLMServingSim: configs/model/meta-llama/Llama-3.1-8B") | {"pretraining_tp": 1}
