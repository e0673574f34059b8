# Every target sets up what it needs: a virtual environment in .venv, the pinned packages, the
# project itself. People and CI use the same commands.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo test lint types bench bench-data clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

demo: $(READY)
	$(BIN)/fieldwise inspect flights --target late
	$(BIN)/fieldwise demo

test: lint types
	$(BIN)/python -m pytest -n 2 --cov --cov-report=term

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

bench: bench-data

bench-data: $(READY)
	$(BIN)/python -m benchmarks.data

clean:
	rm -rf $(VENV) demo .mypy_cache .pytest_cache .ruff_cache .coverage
