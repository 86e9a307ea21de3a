# What can be done with a checkout; `make` alone lists it. All of it works on a machine with nothing
# but Python 3.10 or newer and make: the environment is made first, in .venv.
#   PYTHON=python3.12     the interpreter to use
#   ONLY="lint wheels"    the parts of `make test` to run; scripts/check.py --list names them

SHELL := /bin/sh
.DEFAULT_GOAL := help
.SUFFIXES:

PYTHON ?=
ONLY ?=
SOAK ?=
export PYTHON

VENV := $(abspath $(or $(UV_PROJECT_ENVIRONMENT),.venv))
READY := $(VENV)/.ready$(if $(PYTHON),-$(subst /,_,$(PYTHON)))
BIN := $(VENV)/bin

help: ## list what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

demo: $(READY) ## set up, run two examples, show what happened
	@BIN=$(BIN) scripts/demo

test: $(READY) ## set up, pass all tests (about eleven minutes on two cores)
	@$(BIN)/python scripts/check.py $(ONLY)

lint: $(READY) ## ruff, mypy and import-linter
	@$(BIN)/python scripts/check.py lint

format: $(READY) ## mend what ruff can mend, and format
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .
	@$(BIN)/ruff check .

docs: $(READY) ## build the documentation site into build/site/html, without a network
	@$(BIN)/python scripts/build_site.py

dist: $(READY) ## build the wheels and source distributions into dist
	@rm -rf dist
	@.uv/uv build -q --all-packages --out-dir dist

bench: $(READY) ## the benchmarks: ratios, each measured in one run
	@set -e; for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python "$$file"; done

soak: $(READY) ## kill and resume 1,000 runs, cut the power 10,000 times (SOAK="--hours 1", "--executor local --seed 7")
	@$(BIN)/python scripts/soak.py $(SOAK)
	@test -n "$(SOAK)" || $(BIN)/python scripts/soak.py --executor power --rounds 200
	@test -n "$(SOAK)" || $(BIN)/python scripts/soak.py --executor hostile --rounds 500
	@test -n "$(SOAK)" || $(BIN)/python scripts/soak.py --executor stops --rounds 1000 --processes 8
	@test -n "$(SOAK)" || $(BIN)/python scripts/soak.py --executor members --rounds 200
	@test -n "$(SOAK)" || $(BIN)/python scripts/soak.py --executor queues --rounds 200
	@test -n "$(SOAK)" || $(BIN)/python scripts/soak.py --executor studies --rounds 1
	@test -n "$(SOAK)" || $(BIN)/python scripts/soak.py --executor use-cases --rounds 1
	@test -n "$(SOAK)" || $(BIN)/python scripts/same_as_simulated.py
	@test -n "$(SOAK)" || ENSEMBLE_SOAK=1 $(BIN)/pytest -q plugins/ensemble-simulate/tests/test_worked_case.py
	@test -n "$(SOAK)" || $(BIN)/pytest -q -p no:cacheprovider --hypothesis-profile=soak \
	  --timeout=7200 tests/engine/test_laws.py tests/engine/test_study_laws.py \
	  tests/engine/test_budget.py tests/engine/test_tables.py tests/config/test_fuzz.py
	@test -n "$(SOAK)" || for seed in 1 2 3 4 5 6 7 8; do $(BIN)/pytest -q -p no:cacheprovider \
	  --hypothesis-profile=default --hypothesis-seed=$$seed \
	  $$(grep -l "^from hypothesis" -r plugins/*/tests --include='test_*.py') || exit; done
	@test -n "$(SOAK)" || ! sinfo >/dev/null 2>&1 || \
	  $(BIN)/python scripts/soak.py --executor stops-slurm --rounds 1000 --processes 8
	@test -n "$(SOAK)" || ! flux uptime >/dev/null 2>&1 || \
	  $(BIN)/python scripts/soak.py --executor stops-flux --rounds 1000 --processes 8

setup: $(READY) ## make or update .venv

proto: $(READY) ## rebuild what is generated from protos/
	@$(BIN)/python scripts/proto.py

clean: ## remove the environment, builds and caches (never the folder runs)
	rm -rf $(VENV) .uv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis \
	  .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml uv.lock $(wildcard plugins/*/pyproject.toml) scripts/setup \
  $(if $(wildcard .uv/uv),,missing)
	@scripts/setup
	@rm -f $(VENV)/.ready*
	@touch $@

missing:

.PHONY: missing help demo test lint format docs dist bench soak setup proto clean
