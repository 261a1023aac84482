# Everything but the demo and the adapters runs in .venv. Each environment is made on first use, and
# again when pyproject.toml or the core changes.
.DEFAULT_GOAL := help
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; \
	done)
BIN := .venv/bin
HOURS ?= 1
STAMP := .venv/.stamp
# torch is large, so what needs it has an environment of its own.
ADAPTERS := .venv-adapters
TORCH ?= torch
# Open MPI itself comes with the system: openmpi-bin.
WITH_MPI = $(ADAPTERS)/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[bench]"
# The demo needs the library alone.
DEMO := .venv-demo

# Of mutants, those alone in files that differ from a commit.
CHANGED ?=
MUTANTS := $(if $(CHANGED),--changed $(CHANGED))
FUZZ_SECONDS ?= 60
KIND ?= allreduce
# A test with real processes waits for half of its time, so three keep two cores busy.
PARALLEL := -n 3 --dist worksteal

PYTEST := -m pytest $(PARALLEL)

.PHONY: help demo lint test test-core test-jobs test-night test-pythons test-adapters mutants mutants-adapters fuzz docs incident wheel bench bench-compare soak soak-conformance clean

help: ## print this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

demo: $(DEMO)/.stamp ## train with and without a killed worker, and compare the models
	$(DEMO)/bin/python examples/demo.py

lint: $(STAMP) ## ruff, mypy --strict (as on Linux and on macOS), import contracts
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	@$(MAKE) --no-print-directory --jobs 2 --output-sync types-linux types-darwin
	$(BIN)/lint-imports

types-%: # mypy uses one processor
	$(BIN)/mypy --platform $* --cache-dir .mypy_cache/$*

test: lint $(STAMP) ## lint, and run the quick tests and a few with real processes
	$(BIN)/python $(PYTEST)

test-core: $(STAMP) ## run the tests of the compiled core with sanitizers of addresses, behaviour and threads
	PYTHON=$(BIN)/python tests/project/sanitized_core.sh

test-jobs: $(STAMP) $(ADAPTERS)/.stamp ## run the other tests with real processes, and those of the adapters
	$(BIN)/python $(PYTEST) -m "process and not smoke and not slow"
	$(ADAPTERS)/bin/python $(PYTEST) tests/adapters -m "not slow"

test-night: test-pythons test-core test-adapters mutants mutants-adapters fuzz soak ## run everything; a night long

test-pythons: $(STAMP) ## run all tests, the slow ones too, on every Python from 3.11 on that is found
	$(BIN)/python tests/project/every_python.py $(PARALLEL) -m "slow or not slow"

test-adapters: $(ADAPTERS)/.stamp ## run all tests of the adapters: kills at each moment of each way to train
	$(ADAPTERS)/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[frameworks]"
	$(ADAPTERS)/bin/python $(PYTEST) tests/adapters -m "slow or not slow"

mutants: $(STAMP) ## check that the tests notice each mutant (CHANGED=<commit>: of the files changed since)
	PYTHONPATH=.:tracker:chaos $(BIN)/python -m tests.mutants --layers-first $(MUTANTS)

mutants-adapters: $(ADAPTERS)/.stamp ## the same for mutants of the adapters, whose tests need torch or lightgbm
	PYTHONPATH=.:tracker:chaos $(ADAPTERS)/bin/python -m tests.mutants --needing torch --layers-first $(MUTANTS)
	PYTHONPATH=.:tracker:chaos $(ADAPTERS)/bin/python -m tests.mutants --needing lightgbm --layers-first $(MUTANTS)

fuzz: $(STAMP) ## fuzz each decoder for FUZZ_SECONDS, guided by coverage if atheris is available
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[fuzz]"
	PYTHONPATH=.:tracker:chaos $(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS)

docs: $(STAMP) ## build the documentation site into build/docs; a warning is an error
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[docs]"
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -b html docs build/docs
	@echo "build/docs/index.html"

incident: $(STAMP) ## draw docs/incident.svg from a run of which one worker is killed
	$(BIN)/python docs/draw_incident.py

wheel: $(STAMP) ## build the sdist and the wheel into dist
	$(BIN)/python -m hatchling build --directory dist

bench: $(ADAPTERS)/.stamp ## take every figure into benchmarks/results, then fill the tables of the documents
	$(WITH_MPI)
	$(ADAPTERS)/bin/python benchmarks/take_all.py $(TABLES)
	PYTHONPATH=.:tracker:chaos $(ADAPTERS)/bin/python docs/generate.py --write

ifdef BASE
bench-compare: $(STAMP)
	$(BIN)/python benchmarks/compare.py --base $(BASE) --kinds $(KIND)
else
bench-compare: TABLES := compare ## compare with Open MPI and gloo, and fill the tables (BASE=<commit>: with that commit)
bench-compare: bench
endif

soak-conformance: $(STAMP) ## run each conformance scenario 20 times in a row
	$(BIN)/python -m tests.conformance.soak --times 20

soak: $(STAMP) ## simulate faults, and kill and lose real jobs, for HOURS; nothing may break or grow
	$(BIN)/python -m tests.soak --hours $(HOURS) --json

clean: ## remove all environments, the built site and the caches of all tools
	rm -rf build .venv .venv-3.* $(ADAPTERS) $(DEMO) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml hatch_build.py $(wildcard ftcomm/core/*.[ch])
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer with the venv module is needed" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	@touch $@

$(ADAPTERS)/.stamp: pyproject.toml hatch_build.py $(wildcard ftcomm/core/*.[ch])
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer with the venv module is needed" >&2; exit 1; }
	$(PYTHON) -m venv $(ADAPTERS)
	$(ADAPTERS)/bin/python -m pip install --quiet --disable-pip-version-check "$(TORCH)" --editable ".[dev,adapters]"
	@touch $@

$(DEMO)/.stamp: pyproject.toml hatch_build.py $(wildcard ftcomm/core/*.[ch])
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer with the venv module is needed" >&2; exit 1; }
	@echo "Installing into $(DEMO): ftcomm,$$(sed -n 's/^dependencies = \[\(.*\)\]/ \1/p' pyproject.toml | tr -d '"')"
	$(PYTHON) -m venv $(DEMO)
	$(DEMO)/bin/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@
