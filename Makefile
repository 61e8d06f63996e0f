# `make` alone prints this list. ARGS passes options on: make up ARGS="--model DIRECTORY"

.DEFAULT_GOAL := help
BIN := .venv/bin
# The first Python that fits; name another with PYTHON=. Looked for only when needed.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 python3.14; do \
	"$$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null && echo "$$python" && break; done)

.PHONY: help setup dev up down status bench goals test test-long test-all conformance load chaos hosts pair lint clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 18

ifdef NO_SETUP
up:
	@PYTHONPATH="$(CURDIR)/src$${PYTHONPATH:+:$$PYTHONPATH}" $(PYTHON) -m diptych up $(ARGS)
else
up: setup ## set up and serve the model, here (NO_SETUP=1: in the Python environment that is active)
	@$(BIN)/diptych up $(ARGS)
endif

down: ## take the service down
	@$(call diptych,down)

status: ## what is up, and what blocks
	@$(call diptych,status)

bench: setup ## the split against one engine on this machine, under the same load, with a verdict; under 10 minutes
	@$(BIN)/diptych bench --input 400 --output 32 --rate 0.25 --requests 10 --slo ttft=4s,tpot=150ms compare $(ARGS)

goals: setup ## Diptych against Ray's own application and bare vLLM, the split against one engine, the commands; 30 minutes
	@missed=; for each in stock aggregated commands way mix; do \
	echo "$(BIN)/python benchmarks/$$each.py"; $(BIN)/python benchmarks/$$each.py || missed="$$missed $$each"; done; \
	[ -z "$$missed" ] || { echo "make: goals missed in:$$missed" >&2; exit 1; }

setup: ## make .venv with the engines, as locked in requirements/
	@$(call python,scripts/setup.py)

dev: ## the same and what the tests need
	@$(call python,scripts/setup.py --dev)

lint: dev ## format, style, types and layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint ## lint, then all tests but those marked long
	@$(call in_two_parts,not long)

test-long: dev ## the tests marked long that have no suite of their own
	@$(call in_two_parts,$(OTHERS))

conformance: dev ## every field of every request, and fuzz: the split against the engine alone
	$(BIN)/python -m pytest -m conformance $(ARGS)

load: dev ## placement, full queues, several prefill replicas, both ways in: on a quiet machine
	$(BIN)/python -m pytest tests/engines -m load -s $(ARGS)

chaos: dev ## engines, replicas and Ray's processes killed, KV transfers held: what each request becomes
	$(BIN)/python -m pytest tests/engines -m chaos -s $(ARGS)

hosts: dev ## prefill and decode on two hosts (needs root), and LIBFABRIC without EFA: what `diptych verify` says
	$(BIN)/python -m pytest tests/engines -m hosts -s $(ARGS)

pair: ## the tests that depend on the engines' versions, with Ray 2.58 and vLLM 0.26
	@$(call python,scripts/second_pair.py $(ARGS))

test-all: test ## every test
	@$(MAKE) --no-print-directory test-long
	@$(MAKE) --no-print-directory conformance
	@$(MAKE) --no-print-directory load
	@$(MAKE) --no-print-directory chaos
	@$(MAKE) --no-print-directory hosts

clean: ## remove .venv and what the tools leave; models stay in the user's cache
	@[ ! -x $(BIN)/diptych ] || $(BIN)/diptych down || true
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache

OTHERS = long and not conformance and not load and not chaos and not hosts
# Tests without engines share the cores, two for each of two, since half of their time is waiting; then those with
# engines, whatever became of the others, but for Ctrl-C (2). What ARGS narrows down may leave nothing of one kind (5).
none = $(if $(ARGS),5,-)
in_two_parts = failed=; \
	for part in 'not engines' engines; do \
	case $$part in engines) many= ;; *) many='-n 4 --dist loadfile' ;; esac; \
	echo "$(BIN)/python -m pytest -m '$(1) and $$part' $$many $(ARGS)"; \
	$(BIN)/python -m pytest -m "$(1) and $$part" $$many $(ARGS) || case $$? in \
	2) exit 2 ;; $(none)) ;; *) failed="$$failed '$$part'" ;; esac; done; \
	[ -z "$$failed" ] || { echo "make: tests failed, of those marked$$failed" >&2; exit 1; }

# Run a script with a Python that fits, or say what to do.
python = python='$(PYTHON)'; if [ -z "$$python" ]; then \
	echo "make: no Python 3.11 to 3.14 is here ($$(python3 --version 2>&1 || true)): install one with its venv" \
	"module, or name one, as in make $@ PYTHON=/path/to/python3.12" >&2; exit 1; fi; "$$python" $(1)

diptych = [ -x $(BIN)/diptych ] || { echo "make: nothing is set up here: run 'make up' first" >&2; exit 1; }; \
	$(BIN)/diptych $(1) $(ARGS)
