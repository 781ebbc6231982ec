# `make demo` and `make test` work on a fresh machine that has Python and make.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Marks a complete installation.
READY  := $(VENV)/.installed
OUT    ?= runs/demo-$(shell date +%Y%m%d-%H%M%S)

.PHONY: help install demo test test-all check lint types format fast clean dashboards

help:  ## List these commands.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

install: $(READY)  ## Create .venv and install the package with the versions in constraints.txt.

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(READY)  ## Compare FedAvg, FedAvgM, FedBCGD and FedBCGD+ on the built-in digits.
	$(BIN)/raybcgd compare jobs/configs/demo.toml --out $(OUT)

test: fast  ## Run all tests except the slow ones.
	$(BIN)/python -m pytest -m "ray and not slow"

test-all: fast  ## Run all tests.
	$(BIN)/python -m pytest -m "ray or slow"

check: lint types fast  ## Run lint, types and the tests without Ray: before each commit.

lint: $(READY)  ## Check style, format and layers.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo --no-cache

types: $(READY)  ## Check types.
	$(BIN)/mypy

fast: $(READY)  ## Run the tests without Ray, two at a time.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not ray"

format: $(READY)  ## Format the code.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

dashboards: $(READY)  ## Regenerate the dashboards, their table of metrics, and the cluster files.
	$(BIN)/python -m dashboards.build
	for values in cluster/kubernetes/*.toml cluster/ray-up/*.toml; do $(BIN)/raybcgd cluster render $$values > /dev/null || exit 1; done

clean:  ## Remove the environment and the caches, but not the runs.
	rm -rf $(VENV) *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
