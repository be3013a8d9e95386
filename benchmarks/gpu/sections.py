"""The sections, the most important first, and what each may take."""

import dataclasses
import importlib
from collections.abc import Callable, Mapping

from gpu.record import Record
from gpu.scale import Scale


@dataclasses.dataclass(frozen=True)
class Section:
    """One question.

    Attributes:
        entry: module and function that answer it.
        question: what stands above its tables.
        limit: seconds that it has, of those that are left; more where those after it leave time.
        package: that must be installed for it, if any.
        checkout: variable of the environment that it needs, if any.
        environment: of its process.
        flags: that its process has for XLA beside the others.
    """

    entry: str
    question: str
    limit: int
    package: str | None = None
    checkout: str | None = None
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    flags: str = ""

    def load(self) -> Callable[[Scale, Record], None]:
        module, _, name = self.entry.partition(":")
        return getattr(importlib.import_module(f"gpu.{module}"), name or "run")


# Where PyTorch works on the same GPU, JAX must not take its memory beforehand.
BESIDE_TORCH = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}

SECTIONS = {
    "decode": Section("decode", "What of the bandwidth that a copy reaches does plain decoding use?", 125),
    "cycle": Section("cycle", "What does a pass over more rows cost, and what is a whole EAGLE-3 cycle made of?", 190),
    "speedup": Section("speedup", "How much faster is EAGLE-3 than plain decoding, one answer at a time?", 140),
    "batch": Section("batch", "Is a batch, with the tree for its size, never slower than plain decoding?", 130),
    "tests": Section("device_tests", "Is what runs here right here?", 120),
    "kernels": Section(
        "kernels", "Is the attention kernel faster than plain XLA, and does the text stay the same?", 80
    ),
    "large": Section("large", "What does a 70B target in 4 bits do on one GPU?", 200),
    "peers": Section("peers", "How fast is transformers with the same weights?", 90, "torch", None, BESIDE_TORCH),
    "eagle": Section("originals:eagle", "How fast is the original EAGLE?", 150, None, "EAGLE_CHECKOUT", BESIDE_TORCH),
    "gpt-fast": Section("originals:gpt_fast", "How fast is gpt-fast?", 150, None, "GPT_FAST_CHECKOUT", BESIDE_TORCH),
    "graphs": Section(
        "cycle:graphs",
        "Are steps and cycles shorter where XLA makes one CUDA graph of the decoding loop?",
        110,
        flags="--xla_gpu_enable_command_buffer=+WHILE",
    ),
}
