"""Which backend computes a case.

| platform | default | why |
|---|---|---|
| CPU | `native` | one operation and less work: passes are quicker with it (`benchmarks/native.py`) |
| TPU | `xla` | no kernel of ours has been measured on one |
| GPU | `xla` | no kernel of ours has been measured on one |

The environment variable `EAGLE_JAX_ATTENTION` names the one to try first; it is read when a program is compiled. On a
CPU `pallas_tpu` is interpreted, which is slow. What a backend cannot do is left to `xla`, and the logger
`eagle_jax.kernels` tells why, once for each reason: as a warning where the backend was asked for by name, else as
information.
"""

import logging
import os

import jax
from jaxtyping import Array, Float

from eagle_jax.kernels import native, pallas_gpu, pallas_tpu, xla
from eagle_jax.kernels.base import Backend, Case
from eagle_jax.sharding import by_head

VARIABLE = "EAGLE_JAX_ATTENTION"
DEFAULTS = {"cpu": "native", "gpu": "xla", "tpu": "xla"}

log = logging.getLogger("eagle_jax.kernels")
_told: set[tuple[int, str, str]] = set()


def _on_tpu(case: Case) -> Float[Array, "b k r c"]:
    return by_head(pallas_tpu.attend, case)


def _on_gpu(case: Case) -> Float[Array, "b k r c"]:
    if jax.default_backend() != "gpu":
        raise NotImplementedError("there is no GPU")
    return by_head(pallas_gpu.attend, case)


BACKENDS: dict[str, Backend] = {
    "xla": xla.attend,
    "native": native.attend,
    "pallas_tpu": _on_tpu,
    "pallas_gpu": _on_gpu,
}


def attend(case: Case, implementation: str | None = None) -> Float[Array, "b k r c"]:
    """What the first backend that can do it makes of a case.

    Args:
        implementation: the one backend to use; None tries that of the environment variable, the platform's, and `xla`.

    Raises:
        NotImplementedError: `implementation` cannot do it.
        ValueError: there is no backend of this name.
    """
    if implementation is not None:
        return _backend(implementation, "implementation")(case)
    asked = os.environ.get(VARIABLE)
    for name in (asked, DEFAULTS.get(jax.default_backend())) if case.slots else ():  # without a cache nothing is lost
        if not name:
            continue
        try:
            return _backend(name, VARIABLE)(case)
        except NotImplementedError as reason:
            _tell(logging.WARNING if name == asked else logging.INFO, name, case, str(reason))
    return xla.attend(case)


def first_choice() -> str | None:
    """The backend that is tried first."""
    return os.environ.get(VARIABLE) or DEFAULTS.get(jax.default_backend())


def _tell(level: int, name: str, case: Case, reason: str) -> None:
    """A program asks once for each layer, and a loop of several programs for each of them; one line says it all."""
    if (level, name, reason) not in _told:
        _told.add((level, name, reason))
        log.log(level, "%s does not take %s: %s", name, case, reason)


def _backend(name: str, source: str) -> Backend:
    if name not in BACKENDS:
        raise ValueError(f"{source}={name!r} is no backend of tree attention; expected one of {', '.join(BACKENDS)}")
    return BACKENDS[name]
