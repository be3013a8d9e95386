"""How much memory does loading a target take, for each of its numbers, by what its files hold?

    python -m benchmarks.decode.loading_memory

Writes random targets in a temporary folder as they are published (bfloat16, FP8 in blocks, AWQ, GPTQ in another order
of inputs), loads each in a process of its own, and samples that process's own memory meanwhile, mapped files left out.
The embedding and the output matrix are small, so the figures are those of the other matrices. Linux only.
"""

import argparse
import gc
import json
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save_file

from benchmarks.common.command import begin, parser
from benchmarks.common.tables import show
from eagle_jax.converters import config_from_hf, llama, names
from eagle_jax.models.quant import is_matrix

SIZES = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 8, "num_key_value_heads": 8}
ENTRIES = SIZES | {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 256,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "torch_dtype": "bfloat16",
}
AWQ = {"quant_method": "awq", "version": "gemm", "bits": 4, "group_size": 128, "zero_point": True}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": True}
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
STATED = {"bfloat16": None, "FP8, blocks of 128": FP8, "AWQ": AWQ, "GPTQ, another order": GPTQ}
Tensors = dict[str, np.ndarray]


def floats(rng: np.random.Generator, outputs: int, inputs: int) -> Tensors:
    return {"weight": rng.standard_normal((outputs, inputs), np.float32).astype(jnp.bfloat16)}


def blocks(rng: np.random.Generator, outputs: int, inputs: int) -> Tensors:
    weight = rng.standard_normal((outputs, inputs), np.float32).astype(jnp.float8_e4m3fn)
    return {"weight": weight, "weight_scale_inv": np.full((-(-outputs // 128), -(-inputs // 128)), 0.01, np.float32)}


def words(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(-(2**31), 2**31, shape).astype(np.int32)


def awq(rng: np.random.Generator, outputs: int, inputs: int) -> Tensors:
    scales = np.full((inputs // 128, outputs), 0.01, np.float16)
    return {
        "qweight": words(rng, inputs, outputs // 8),
        "qzeros": words(rng, inputs // 128, outputs // 8),
        "scales": scales,
    }


def gptq(rng: np.random.Generator, outputs: int, inputs: int) -> Tensors:
    return {
        "qweight": words(rng, inputs // 8, outputs),
        "qzeros": np.full((inputs // 128, outputs // 8), 0x77777777, np.int32),
        "scales": np.full((inputs // 128, outputs), 0.01, np.float16),
        "g_idx": (np.random.default_rng(0).permutation(inputs) // 128).astype(np.int32),
    }


PUBLISH = {"bfloat16": floats, "FP8, blocks of 128": blocks, "AWQ": awq, "GPTQ, another order": gptq}


def write(folder: pathlib.Path, form: str, layers: int) -> int:
    """Writes a target; returns how many numbers its matrices have."""
    entries = ENTRIES | {"num_hidden_layers": layers}
    config, rng, numbers, tensors = config_from_hf(entries), np.random.default_rng(0), 0, {}
    for path, slot in names.slots(llama.rules(config), llama.shapes(config)).items():
        (key,) = slot.keys
        module = key.removesuffix(".weight")
        if is_matrix(path) and module != "lm_head":
            numbers += int(np.prod(slot.shape))
            tensors |= {f"{module}.{end}": value for end, value in PUBLISH[form](rng, *slot.shape).items()}
        else:
            tensors[key] = np.ones(slot.shape, jnp.bfloat16)
    save_file(tensors, folder / "model.safetensors")
    stated = {} if STATED[form] is None else {"quantization_config": STATED[form]}
    (folder / "config.json").write_text(json.dumps(entries | stated))
    return numbers


def own_memory() -> int:
    """Bytes of this process that no file holds."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def measured(folder: pathlib.Path) -> tuple[int, int]:
    """The most memory while loading, and what is left of it, beyond what a process has that has loaded a tiny one."""
    import eagle_jax
    from eagle_jax.platform import return_freed_memory

    eagle_jax.load(folder / "tiny", dtype="bfloat16")
    gc.collect()
    return_freed_memory()
    before, most, ended = own_memory(), 0, threading.Event()

    def sample() -> None:
        nonlocal most
        while not ended.is_set():
            most = max(most, own_memory())
            time.sleep(0.002)

    watcher = threading.Thread(target=sample)
    watcher.start()
    model = eagle_jax.load(folder, dtype="bfloat16")
    ended.set()
    watcher.join()
    held = own_memory()
    assert model.target is not None
    return max(most, held) - before, held - before


def memory_of(form: str, layers: int) -> tuple[float, float]:
    """Bytes for each number: the most while loading, and when it is loaded."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "tiny").mkdir()
        write(folder / "tiny", form, 1)
        numbers = write(folder, form, layers)
        command = [sys.executable, "-m", "benchmarks.decode.loading_memory", "--measure", name]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    most, held = json.loads(printed.splitlines()[-1])
    return most / numbers, held / numbers


def main() -> None:
    own = parser(__doc__)
    own.add_argument("--layers", type=int, default=16, help="of the targets, 16.8 million numbers each (%(default)s)")
    own.add_argument("--measure", type=pathlib.Path, help=argparse.SUPPRESS)
    options = own.parse_args()
    if options.measure is not None:
        print(json.dumps(measured(options.measure)))
        return
    rows = [(form, *memory_of(form, options.layers)) for form in STATED]
    show("Bytes for each number of the matrices", ("files", "most while loading", "loaded"), rows)


if __name__ == "__main__":
    begin(main)
