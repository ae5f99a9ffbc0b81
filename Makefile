PYTHON ?= python3
BIN := .venv/bin

.DEFAULT_GOAL := help
# Two processes, a whole file each: a file's store is shared by its tests.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile

.PHONY: help setup demo test test-slow chaos check lint types clean

help: ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup: ## create .venv, or bring it up to date (the others do this by themselves)
	@PYTHON=$(PYTHON) scripts/setup.sh

demo: setup ## replay a small trace through a Mooncake store of its own, and check every byte
	$(BIN)/kvpool job=replay model=qwen3_next_80b layers_per_pool=2 job.restart=true \
		device.memory=64MiB backend.segment=1GiB

test: setup ## run the tests, without those that take minutes or need a GPU
	$(PYTEST) -m "not slow and not chaos and not gpu"

test-slow: setup ## run the tests that take minutes
	@scripts/browser.sh
	$(PYTEST) -m "slow and not chaos and not gpu"

chaos: setup ## kill, stop, starve and corrupt stores for ten minutes, and print what became of it
	$(BIN)/python -m tests.chaos --seconds 600

check: lint types ## ruff and mypy

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

clean: ## remove .venv and everything that tools leave behind
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
