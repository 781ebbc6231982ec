# `make demo` and `make test` are all that a fresh machine with Python and make needs.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Written when the installation is complete, so that it is not repeated.
READY  := $(VENV)/.installed
OUT    ?= runs/demo-$(shell date +%Y%m%d-%H%M%S)

.PHONY: help install demo test test-all check lint types format fast clean dashboards

help:  ## List these commands.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

install: $(READY)  ## Create .venv and install the package with the versions of constraints.txt.

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(READY)  ## Compare FedAvg, FedAvgM, FedBCGD and FedBCGD+ on the embedded digits.
	$(BIN)/raybcgd compare jobs/configs/demo.toml --out $(OUT)

test: fast  ## Run the tests, all but the slow ones.
	$(BIN)/python -m pytest -m "ray and not slow"

test-all: fast  ## Run every test.
	$(BIN)/python -m pytest -m "ray or slow"

check: lint types fast  ## Lint, types and the tests that need no Ray: what to run before a commit.

lint: $(READY)  ## Check style and format.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)  ## Check types.
	$(BIN)/mypy

fast: $(READY)  ## Run the tests that need no Ray, two at a time.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not ray"

format: $(READY)  ## Put the code in its format.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

dashboards: $(READY)  ## Write the dashboards, their table of metrics and their Kubernetes objects anew.
	$(BIN)/python -m dashboards.build

clean:  ## Remove the environment and caches, not the runs.
	rm -rf $(VENV) *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
