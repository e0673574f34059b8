# Every target sets up what it needs: a virtual environment in .venv, the pinned packages, the
# project itself. People and CI use the same commands.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo test test-all lint types bench bench-data bench-cpu bench-accuracy bench-tasks bench-components bench-baselines bench-explain bench-bound bench-compare bench-presets bench-serve bench-update bench-scale docs clean

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

# The same with a hundred kills in the middle of training instead of five, recorded, and with
# property tests that look for new cases.
test-all: lint types
	FIELDWISE_KILLS=100 FIELDWISE_RECORD=benchmarks/results/kills.json \
		$(BIN)/python -m pytest tests/test_train.py -k killed
	$(BIN)/python -m pytest -n 2 --hypothesis-profile=search --cov --cov-report=term

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

bench: bench-data bench-cpu bench-accuracy bench-tasks bench-components bench-baselines bench-explain bench-bound bench-serve bench-update bench-scale

bench-data: $(READY)
	$(BIN)/python -m benchmarks.data

bench-cpu: $(READY)
	$(BIN)/python -m benchmarks.cpu

# The field-wise model beside its relatives, and the presets beside tuned trees.
bench-accuracy: bench-presets
	$(BIN)/python -m benchmarks.accuracy

bench-tasks: $(READY)
	$(BIN)/python -m benchmarks.tasks

bench-components: $(READY)
	$(BIN)/python -m benchmarks.components

bench-baselines: $(READY)
	$(BIN)/python -m benchmarks.baselines

bench-explain: $(READY)
	$(BIN)/python -m benchmarks.explain

bench-bound: $(READY)
	$(BIN)/python -m benchmarks.bound

# Hours on two cores; may be stopped and goes on.
bench-compare: $(READY)
	$(BIN)/python -m benchmarks.compare prepare
	$(BIN)/python -m benchmarks.compare run paper,hist cpu
	$(BIN)/python -m benchmarks.compare results

# As long, may be stopped and goes on; needs an idle machine: times are compared.
bench-presets: $(READY)
	$(BIN)/python -m benchmarks.presets run
	$(BIN)/python -m benchmarks.presets results
	$(BIN)/python -m benchmarks.ablations

bench-serve: $(READY)
	$(BIN)/python -m benchmarks.serve

bench-scale: $(READY)
	$(BIN)/python -m benchmarks.scale

bench-update: $(READY)
	$(BIN)/python -m benchmarks.update

# The manual, into site/: open site/index.html, no server or network is needed.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

clean:
	rm -rf $(VENV) demo site .mypy_cache .pytest_cache .ruff_cache .coverage
