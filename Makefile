# Everything runs in .venv, which is made on first use and again when pyproject.toml changes.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; \
	done)
BIN := .venv/bin
HOURS ?= 1
STAMP := .venv/.stamp

FUZZ_SECONDS ?= 60
# A test with real processes mostly waits for them, so two fit on two cores.
PARALLEL := -n 2 --dist worksteal

.PHONY: demo test test-all mutants fuzz lint bench bench-compare soak soak-conformance clean

demo: $(STAMP) ## train with and without a kill, compare the models
	$(BIN)/python examples/demo.py

test: $(STAMP) ## what every change runs
	$(BIN)/python -m pytest $(PARALLEL)

test-all: $(STAMP) ## the slow tests too, on every Python from 3.11 on that is found
	$(BIN)/python tests/project/every_python.py $(PARALLEL) -m "slow or not slow"

mutants: $(STAMP) ## each planted defect is caught by its layer, and by no layer without a defect
	PYTHONPATH=.:tracker:chaos $(BIN)/python -m ftcomm_chaos.mutants --layers-first

fuzz: $(STAMP) ## each decoder of foreign bytes for FUZZ_SECONDS, guided by coverage where atheris is to be had
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[fuzz]"
	PYTHONPATH=.:tracker:chaos $(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS)

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin
	$(BIN)/lint-imports

bench: $(STAMP) ## take every figure into benchmarks/results, then fill the tables of the documents
	$(BIN)/python benchmarks/take_all.py
	PYTHONPATH=.:tracker:chaos $(BIN)/python docs/generate.py --write

bench-compare: $(STAMP) ## allreduce of this tree beside that of the commit BASE, in turn, with intervals
	@test -n "$(BASE)" || { echo "make bench-compare BASE=<commit>" >&2; exit 1; }
	$(BIN)/python benchmarks/compare_commits.py --base $(BASE)

soak-conformance: $(STAMP) ## each conformance scenario 20 times in a row
	$(BIN)/python -m tests.conformance.soak --times 20

soak: $(STAMP) ## simulated faults and real kills side by side for HOURS; nothing may break or grow
	$(BIN)/python -m tests.soak --hours $(HOURS) --json

clean:
	rm -rf .venv .venv-3.* .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer with the venv module is needed" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	@touch $@
