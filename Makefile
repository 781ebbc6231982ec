# `make demo` and `make test` work on a fresh machine that has Python and make.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
# Marks a complete installation.
READY  := $(VENV)/.installed
# The files with tests that start Ray. pytest would take seconds to collect all the others in every process.
RAY_TESTS = $(shell grep -rlE 'mark\.ray\b' tests --include='*.py')
# The simulators that `make bench` compares with.
PEERS  := .bench-venv
OUT    ?= runs/demo-$(shell date +%Y%m%d-%H%M%S)

.PHONY: help install demo test test-all test-device check lint types format fast ray bench results clean dashboards docs

help:  ## List these commands.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

install: $(READY)  ## Create .venv and install the package with the versions in constraints.txt.

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(READY)  ## Compare FedAvg, FedAvgM, FedBCGD and FedBCGD+ on the built-in digits.
	$(BIN)/raybcgd compare jobs/configs/demo.toml --out $(OUT)
	@echo 'next: `source .venv/bin/activate`, then `raybcgd new FOLDER`'

test: fast ray test-device  ## Run all tests except the slow ones and those that measure time.

test-all: fast ray  ## Run all tests.
	$(PYTEST) -m "alone or slow"
	$(MAKE) --no-print-directory test-device

test-device: $(READY)  ## Run the tests on the stand-in accelerator, first those with Ray. The first run builds it.
	OMP_NUM_THREADS=1 $(PYTEST) -n 3 --dist loadfile --no-loadscope-reorder -m device tests/device

check: lint types fast  ## Run lint, types and the tests without Ray: before each commit.

lint: $(READY)  ## Check style, format and layers.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo --no-cache

types: $(READY)  ## Check types.
	$(BIN)/mypy

fast: $(READY)  ## Run the tests without Ray, three at a time: some of them wait for other programs.
	OMP_NUM_THREADS=1 $(PYTEST) -n 3 --dist worksteal -m "not slow and not ray and not device"

ray: $(READY)  ## Run the tests with Ray, three at a time: they wait half of the time. Tests that share a cluster run in one process.
	OMP_NUM_THREADS=1 $(PYTEST) -n 3 --dist loadfile -m "ray and not slow and not alone" $(RAY_TESTS)

format: $(READY)  ## Format the code.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

dashboards: $(READY)  ## Regenerate the dashboards, their table of metrics, and the cluster files.
	$(BIN)/python -m dashboards.build
	for values in cluster/kubernetes/*.toml cluster/ray-up/*.toml; do $(BIN)/raybcgd cluster render $$values > /dev/null || exit 1; done

docs: $(READY)  ## Build the documentation in site/. A warning is an error.
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

bench: $(READY) $(PEERS)/.installed  ## Benchmark (set CIFAR10 and FASHION_MNIST to data folders; ARGS=--quick checks that it works).
	$(BIN)/python -m benchmarks $(ARGS)

results: $(READY)  ## Run what docs/results.md lacks (set CIFAR10 and FASHION_MNIST to data folders; ARGS="--minutes 18" stops after that time).
	$(BIN)/python -m results $(ARGS)

$(PEERS)/.installed: benchmarks/peers/requirements.txt
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --requirement benchmarks/peers/requirements.txt
	touch $@

clean:  ## Remove the environments and the caches, but not the runs.
	rm -rf $(VENV) $(PEERS) site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
