# Everything runs in .venv, made on first use; a machine needs only make and Python 3.11 or newer.
# `make` lists the targets. Another Python: `make test PYTHON=/path/to/python3.13`.

comma := ,
# The newest that answers: a command of pyenv's may be there and refuse, while its interpreter lies in a folder.
PYENV := $(or $(PYENV_ROOT),$(HOME)/.pyenv)/versions
find_python = $(shell for p in $(1); do $$p -c 'import sys; sys.exit(not $(2))' 2>/dev/null && echo $$p && break; done)
PYTHON ?= $(call find_python,$(foreach v,3.13 3.12 3.11,python$(v) $(wildcard $(PYENV)/$(v).*/bin/python3)) \
	python3 python,sys.version_info >= (3$(comma) 11))
PYTHON311 ?= $(call find_python,python3.11 $(wildcard $(PYENV)/3.11.*/bin/python3) python3,sys.version_info[:2] == (3$(comma) 11))
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Two xdist workers: most of the suite's time is XLA compiling, which uses one core per process.
# Each begins with half of the tests, file by file, and at last takes over some of what the other one has left.
SAMPLE ?= 1
ARM_SAMPLE ?= 12
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal --durations=40

.PHONY: help demo chat readers test proofs tpu cuda arm matrix without-cpu oldest lint format types docs parity ray ci clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

demo: .venv/runtime  ## three chats with SmolLM2-135M-Instruct, plain against EAGLE; downloads 93 MB, once
	@$(BIN)/eagle-jax demo

chat: .venv/runtime  ## a conversation with the same model
	@$(BIN)/eagle-jax chat

test: .venv/dev  ## the suite, one row of each long table; WITHOUT=MARK leaves tests out; PART="--sample 8" runs an eighth, PART=tests/loop a room
	$(PYTEST) -m "not proof$(if $(WITHOUT), and not $(WITHOUT))" --one-row $(PART)

matrix: .venv/dev  ## all rows of these tables, half an hour; WITHOUT and PART as above
	$(PYTEST) -m "matrix and not proof$(if $(WITHOUT), and not $(WITHOUT))" $(PART)

proofs: .venv/dev build/clients  ## what takes long each: notebooks, the wheel alone, killed jobs, trainings, the tuner; SKIP=NAME leaves tests out
	$(PYTEST) -m proof $(if $(SKIP),-k "not $(SKIP)")

tpu: .venv/dev build/libtpu  ## what the TPU compiler makes of the kernel and of the loop of an 8B target; needs no TPU
	PYTHONPATH=build/libtpu $(BIN)/python -m pytest -m proof tests/ops/test_tpu_compile.py

cuda: .venv/dev build/cuda  ## what XLA makes of the kernel and of the loop for an H200; needs no GPU
	PYTHONPATH=build/cuda $(BIN)/python -m pytest -m proof tests/ops/test_gpu_compile.py

arm: .venv/dev  ## a part of the tests of the CPU backend on 64-bit ARM, emulated, with dot products and without; needs apt-get, takes an hour
	tests/arm.sh neoverse-n1 -m pytest -q $(addprefix tests/ops/cpu/test_,bits.py cpu_quantized.py blocks.py cpu_top_k.py) --sample $(ARM_SAMPLE)
	tests/arm.sh cortex-a72 -m pytest -q $(addprefix tests/ops/cpu/test_,cpu_linear.py cpu_quantized.py) --sample $(ARM_SAMPLE)

without-cpu: .venv/dev  ## a part of the suite without the folder of the CPU backend
	@rm -rf build/without-cpu && mkdir -p build/without-cpu
	@cp -r eagle_jax tests pyproject.toml README.md build/without-cpu/
	@rm -r build/without-cpu/eagle_jax/ops/cpu build/without-cpu/tests/ops/cpu
	cd build/without-cpu && ../../.venv/bin/python -m pytest -n 2 -q -m "not proof" \
		tests/ops tests/models/test_layout.py tests/models/test_llama_parity.py tests/decoding/test_conformance.py \
		-k "not test_conformance or eagle3 or hybrid" $(PART)

oldest:  ## the suite on Python 3.11 with the oldest versions that the bounds allow; SAMPLE=4: a quarter
	@if [ -z "$(PYTHON311)" ]; then echo "No Python 3.11 was found: the oldest versions are not tested here"; else \
	$(MAKE) --no-print-directory .venv-oldest/dev && .venv-oldest/bin/python -m pytest -n 2 --dist worksteal -q \
		-m "not proof" --one-row --sample $(SAMPLE); fi

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
	$(PYTEST) -m parity $(PART)

readers: .venv/torch build/speculators build/llama-cpp  ## what we write, read by speculators and transformers; what we read, by llama.cpp
	PYTHONPATH=$(CURDIR)/build/speculators:$(CURDIR)/build/llama-cpp $(BIN)/python -m pytest tests/readers

ray: .venv/dev build/ray  ## the tests that use Ray: actors that are killed, replicas behind one address
	PYTHONPATH=$(CURDIR)/build/ray $(BIN)/python -m pytest tests/integrations --durations=10

ci: lint types docs test matrix proofs parity ray without-cpu oldest  ## what continuous integration runs

clean:  ## remove the environment and all caches
	rm -rf .venv .venv-oldest build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

.venv/python:
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or newer was found; install one, or name it: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -m venv .venv
	@touch $@

.venv/runtime: .venv/python pyproject.toml
	@echo "Installing into .venv; this takes a minute or two, the first time only"
	@$(PIP) install --quiet --editable ".[cpu]"
	@touch $@

.venv/dev: .venv/python pyproject.toml
	@echo "Installing into .venv, with what development needs; a minute or two, the first time only"
	@$(PIP) install --quiet --editable ".[dev]"
	@touch $@ .venv/runtime

.venv-oldest/dev: pyproject.toml oldest.txt
	@$(PYTHON311) -m venv .venv-oldest
	@echo "Installing the oldest versions into .venv-oldest"
	@.venv-oldest/bin/python -m pip --disable-pip-version-check install --quiet --editable ".[dev]" --constraint oldest.txt
	@touch $@

.venv/docs: .venv/dev
	@$(PIP) install --quiet --editable ".[docs]"
	@touch $@

# What people point at a server, beside the environment: they ask for other versions of what is there.
build/clients: .venv/dev
	@$(PIP) install --quiet --target $@ langchain-openai instructor anthropic

# Its web server would be another one than in the rest of the suite, and 80 packages would come with it.
build/ray: .venv/dev
	@$(PIP) install --quiet --target $@ "ray[data,serve]>=2.60"

# Beside the environment and not in it: JAX would look for a TPU whenever it starts.
build/libtpu: .venv/dev
	@wanted=$$($(BIN)/python -c "from importlib.metadata import requires; \
		print(next(line.split(';')[0] for line in requires('jax') if line.startswith('libtpu')))") && \
	$(PIP) install --quiet --target $@ "$$wanted"

# Without what it wants: torch is there, and the rest is for its trainings.
build/speculators: .venv/dev
	@rm -rf $@
	@$(PIP) install --quiet --target $@ "datasets>=4.0" openai pydantic-settings loguru
	@$(PIP) install --quiet --no-deps --target $@ speculators==0.9.0 hs-connectors==0.9.0

build/llama-cpp: .venv/dev
	@$(PIP) install --quiet --no-deps --target $@ xllamacpp==2026.10.11549

# Of the JAX that is installed, and without NVIDIA's libraries, which only a device needs.
build/cuda: .venv/dev
	@rm -rf $@
	@v=$$($(BIN)/python -c "import jax; print(jax.__version__)") && \
	$(PIP) install --quiet --no-deps --target $@ jax-cuda13-plugin==$$v jax-cuda13-pjrt==$$v
	@touch $@

# One version by name: without it pip would fetch a CUDA build of several GB where an index has only those.
# compressed-tensors and mlx write formats that we read; what else they want is there or not needed for that.
.venv/torch: .venv/dev
	@$(PIP) install --quiet torch==2.13.0 loguru
	@$(PIP) install --quiet --no-deps compressed-tensors==0.20.1 mlx==0.32.4 mlx-cpu==0.32.4
	@touch $@
