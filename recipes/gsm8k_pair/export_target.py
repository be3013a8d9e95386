"""Writes the trained target as an ordinary HuggingFace folder: bfloat16 weights, config, tokenizer, chat template.

    python recipes/gsm8k_pair/export_target.py --tokenizer runs/gsm8k_pair/tokenizer \
        --params runs/gsm8k_pair/target.npz --out eagle_jax/pair/target
"""

import argparse
import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import shape
import transformers

import eagle_jax  # noqa: F401  (sets XLA flags before JAX starts)
from eagle_jax.config import LlamaConfig
from eagle_jax.converters import save_target
from eagle_jax.models.lm import LM


def export(params: Any, config: LlamaConfig, tokenizer_folder: pathlib.Path, folder: pathlib.Path) -> None:
    """Writes `folder`; weights that are there are replaced."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer_folder)
    tokens = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    rounded = jax.tree.map(lambda p: jnp.asarray(p).astype(jnp.bfloat16), params)
    save_target(LM(params=rounded, config=config), folder, extra=tokens)
    write_json(folder / "generation_config.json", tokens)
    tokenizer.save_pretrained(folder)
    about = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    where_it_was = ("is_local", "local_files_only", "backend")
    about = {name: value for name, value in about.items() if name not in where_it_was}
    write_json(folder / "tokenizer_config.json", about | {"tokenizer_class": "PreTrainedTokenizerFast"})
    for file in folder.iterdir():
        file.chmod(0o644)  # safetensors writes files that only their owner reads


def write_json(path: pathlib.Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the trained target as a HuggingFace folder.")
    parser.add_argument("--tokenizer", type=pathlib.Path, required=True, help="folder written by make_tokenizer.py")
    parser.add_argument("--params", type=pathlib.Path, required=True, help=".npz written by train_target.py")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder to write")
    parser.add_argument("--shape", choices=shape.SHAPES, default="target", help="what was trained")
    args = parser.parse_args()
    export(shape.load(args.params), shape.SHAPES[args.shape], args.tokenizer, args.out)
    size = sum(file.stat().st_size for file in args.out.iterdir())
    print(f"{args.out}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
