# Every target sets up what it needs: a virtual environment in .venv, the pinned packages, the
# project itself. People and CI use the same commands.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Benchmarks that are one run of the module of that name.
BENCHES := $(addprefix bench-,data cpu accuracy tasks components baselines explain bound serve update scale sameness)

.PHONY: setup demo test test-all faults lint types bench bench-load bench-compare bench-presets audit docs release-check fuzz clean $(BENCHES)

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

# The same with property tests that look for new cases.
test-all: lint types
	$(BIN)/python -m pytest -n 2 --hypothesis-profile=search --cov --cov-report=term

# Hundreds of kills of the commands that write, for 38 minutes at most.
faults: $(READY)
	$(BIN)/python -m benchmarks.faults

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

bench: $(BENCHES) bench-presets

$(BENCHES): bench-%: $(READY)
	$(BIN)/python -m benchmarks.$*

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

# An hour of good and bad clients; shorter with MINUTES=5. Not part of `make bench`.
MINUTES ?= 60
bench-load: $(READY)
	$(BIN)/python -m benchmarks.soak $(MINUTES)

# Known holes in the pinned packages. Asks a database of the internet, so it is no part of `test`;
# what it cannot ask about is an error, not a pass.
audit: $(READY)
	$(BIN)/pip-audit --strict --disable-pip --no-deps --requirement constraints.txt

# The manual, into site/: open site/index.html, no server or network is needed.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# Before a version goes out: builds it, looks inside, and tries it in an environment of its own.
release-check: $(READY)
	$(BIN)/python -m release.check

# A million inputs to every place where bytes come from outside. May be stopped and goes on; what is
# found is in fuzz/work.
fuzz: $(READY)
	$(BIN)/python -m fuzz run
	$(BIN)/python -m fuzz record

clean:
	rm -rf $(VENV) demo site .mypy_cache .pytest_cache .ruff_cache .coverage
