# Everything a developer runs. The environment is made once and remade when its inputs change.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-all lint bench clean

demo: .venv/installed
	$(BIN)/nfd study

test: lint
	$(BIN)/python -m pytest

test-all: lint
	$(BIN)/python -m pytest -m ""

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: .venv/installed
	$(BIN)/python -m benchmarks.run

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' -c constraints.txt
	touch $@

clean:
	rm -rf .venv out build dist
