#!/usr/bin/env bash
# Benchmarks on one large GPU: `benchmarks/gpu.sh`, and `benchmarks/gpu.sh --help`. PYTHON names the Python that runs
# them, one with a CUDA build of JAX; without it the project's own, if there is one, or else python3. Where a command
# may take ten minutes, two of them measure more: `--only decode,cycle,speedup,kernels`, then
# `--only batch,tests,large,peers`.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [ -z "${PYTHON:-}" ]; then
  PYTHON=python3
  if [ -x "$root/.venv/bin/python" ]; then PYTHON=$root/.venv/bin/python; fi
fi
if ! "$PYTHON" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("jax") is None)'; then
  echo "$PYTHON has no JAX; name with PYTHON one that has a CUDA build of it" >&2
  exit 1
fi
export PYTHONPATH="$root:$root/benchmarks${PYTHONPATH:+:$PYTHONPATH}"
exec "$PYTHON" -m gpu "$@"
