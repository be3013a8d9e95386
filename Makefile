# Everything runs in .venv, made on first use; a machine needs only make and Python 3.11 or newer.
# `make` lists the targets. Another Python: `make test PYTHON=/path/to/python3.13`.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Two xdist workers: most of the suite's time is XLA compiling, which uses one core per process.
# Each begins with half of the tests, file by file, and at last takes over some of what the other one has left.
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal --durations=40

.PHONY: help demo test proofs tpu cuda quick lint format types docs parity ci clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

demo: .venv/runtime  ## an answer from the shipped pair, plain against EAGLE
	@$(BIN)/eagle-jax demo

test: .venv/dev  ## the suite
	$(PYTEST) -m "not proof"

proofs: .venv/dev  ## what takes minutes each: notebooks, documented commands, the wheel alone, jobs that are killed
	$(PYTEST) -m proof

tpu: .venv/dev build/libtpu  ## what the TPU compiler makes of the kernel and of the loop of an 8B target; needs no TPU
	PYTHONPATH=build/libtpu $(BIN)/python -m pytest -m proof tests/kernels/test_tpu_compile.py

cuda: .venv/dev build/cuda  ## what XLA makes of the kernel and of the loop for an H200; needs no GPU
	PYTHONPATH=build/cuda $(BIN)/python -m pytest -m proof tests/kernels/test_gpu_compile.py

quick: .venv/dev  ## the suite without the slow tests
	$(PYTEST) -m "not slow and not proof"

lint: .venv/dev  ## style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: .venv/dev  ## repair style and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: .venv/dev  ## type check
	$(BIN)/mypy

docs: .venv/docs  ## the documentation's pages, in build/site; anything amiss in them is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

parity: .venv/torch  ## the tests that use PyTorch, with PyTorch installed
	$(PYTEST) -m parity

ci: lint types docs test proofs parity  ## what continuous integration runs

clean:  ## remove the environment and all caches
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

.venv/python:
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or newer was found; install one, or name it: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -m venv .venv
	@touch $@

.venv/runtime: .venv/python pyproject.toml
	@echo "Installing into .venv; this takes a minute or two, the first time only"
	@$(PIP) install --quiet --editable .
	@touch $@

.venv/dev: .venv/python pyproject.toml
	@echo "Installing into .venv, with what development needs; a minute or two, the first time only"
	@$(PIP) install --quiet --editable ".[dev]"
	@touch $@ .venv/runtime

.venv/docs: .venv/dev
	@$(PIP) install --quiet --editable ".[docs]"
	@touch $@

# Beside the environment and not in it: JAX would look for a TPU whenever it starts.
build/libtpu: .venv/python
	@$(PIP) install --quiet --target $@ libtpu==0.0.51

# Of the JAX that is installed, and without NVIDIA's libraries, which only a device needs.
build/cuda: .venv/dev
	@rm -rf $@
	@v=$$($(BIN)/python -c "import jax; print(jax.__version__)") && \
	$(PIP) install --quiet --no-deps --target $@ jax-cuda13-plugin==$$v jax-cuda13-pjrt==$$v
	@touch $@

# One version by name: without it pip would fetch a CUDA build of several GB where an index has only those.
.venv/torch: .venv/dev
	@$(PIP) install --quiet torch==2.13.0
	@touch $@
