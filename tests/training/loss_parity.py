"""Losses by our code and by PyTorch's: the cases' form, their weights and texts, and what has to agree."""

import dataclasses
import importlib
import json
import pathlib
import warnings
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

ROWS = 2


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """A head and what it is trained on, as JSON; its objective are the entries of that name beside those of `usual`."""

    name: str
    entries: Mapping[str, Any]
    usual: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        return self.name

    @property
    def objective(self) -> dict[str, Any]:
        return {**self.usual, **self.entries["objective"]}


def drawn(case: Case, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Weights of these shapes, by the case's name."""
    draw = np.random.RandomState(zlib.crc32(case.name.encode()))
    weights = {}
    for name in sorted(shapes):
        values = draw.standard_normal(shapes[name])
        values = 1 + 0.2 * values if "norm" in name else values * shapes[name][-1] ** -0.5
        weights[name] = values.astype(np.float32)
    return weights


def drawn_text(
    case: Case, answer: np.ndarray, *, tokens: int, vocabulary: int, hidden: int, taps: int
) -> dict[str, np.ndarray]:
    """Tokens, which of them are answer, what the target knows of them, its matrices, and the drafted ids.

    Args:
        tokens: how many ids are drawn from.
    """
    draw, shape = np.random.RandomState(zlib.crc32(f"{case.name}/text".encode())), answer.shape
    return {
        "tokens": draw.randint(0, tokens, shape).astype(np.int32),
        "answer": answer,
        "hidden": draw.standard_normal((*shape, hidden)).astype(np.float32),
        "taps": draw.standard_normal((taps, *shape, hidden)).astype(np.float32),
        "embedding": draw.standard_normal((vocabulary, hidden)).astype(np.float32),
        "output": (0.5 * draw.standard_normal((vocabulary, hidden))).astype(np.float32),
        "drafted": np.sort(draw.permutation(vocabulary)[: case.entries["drafted"] or vocabulary]),
    }


def golden(kind: str) -> pathlib.Path:
    """The file with PyTorch's answers for "eagle" or "dflash" heads."""
    return pathlib.Path(__file__).with_name({"eagle": "golden_losses.npz", "dflash": "golden_dflash_losses.npz"}[kind])


def answers(case: Case, kind: str, source: str) -> dict[str, np.ndarray]:
    """What PyTorch computes: from the golden file, or here and now."""
    if source == "live":
        import pytest

        pytest.importorskip("torch")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module({"eagle": "loss_torch", "dflash": "dflash_torch"}[kind]).answers(case)
    with np.load(golden(kind)) as file:
        stored = json.loads(str(file[f"{case}/case"]))
        assert stored == case.entries, f"case {case} has changed; run tests/training/make_loss_golden.py"
        own = [name for name in file.files if name.startswith(f"{case}/") and not name.endswith("/case")]
        return {name.removeprefix(f"{case}/"): file[name] for name in own}


def value_and_gradients(
    loss: Callable[[Any], Any], params: Any, published: Callable[[tuple], str]
) -> tuple[Any, Any, dict[str, np.ndarray]]:
    """Our loss of these parameters, the agreement that it reports, and its gradients by their published names."""
    import jax

    (value, report), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    leaves = jax.tree_util.tree_leaves_with_path(gradients)
    return value, report.agreement, {published(path): np.asarray(leaf) for path, leaf in leaves}


def assert_agree(ours: tuple[Any, Any, Mapping[str, np.ndarray]], expected: Mapping[str, np.ndarray]) -> None:
    """What `value_and_gradients` gives is what PyTorch gives, of the same weights, and each of them is trained."""
    value, agreement, gradients = ours
    np.testing.assert_allclose(value, expected["loss"], rtol=1e-5)
    np.testing.assert_allclose(agreement, expected["agreement"], rtol=1e-6)
    assert {f"gradient/{name}" for name in gradients} == {name for name in expected if name.startswith("gradient/")}
    for name, gradient in gradients.items():
        largest = float(np.abs(expected[f"gradient/{name}"]).max())
        assert largest > 0, f"{name} is not trained"
        np.testing.assert_allclose(gradient, expected[f"gradient/{name}"], atol=1e-5 + 1e-4 * largest, err_msg=name)
