# One set of commands, the same here, in CI and on a fresh machine: only Python 3.11+ and make are
# needed. Each environment target leaves a stamp, so a second call starts at once.

PYTHON ?=
VENV := .venv
BIN := $(VENV)/bin
# Processes that share the tests: every core, or as many as JOBS says; JOBS=0 is one, in the open.
JOBS ?= auto
TESTS ?= tests
# Before the tests: files and folders that TESTS names, or tests in them (tests/x.py::test_y), exist;
# options of pytest stand behind them.
TESTS_EXIST = for test in $(TESTS); do case "$$test" in -*) break;; esac; [ -e "$${test%%::*}" ] || { echo "TESTS=$$test does not exist" >&2; exit 2; }; done
# Of all chance in `make soak`.
SEED ?= 1
# What `make quick` leaves out: nearly every test there compiles kernels.
COMPILING := tests/backends tests/benchmarks tests/conformance
# The oldest Triton: unlike the newest, it compiles windows that slide over shared memory.
TRITON36 := build/triton36
# What an environment holds to, beside the extras.
PINS ?=
# LOCKED=1 installs what requirements-dev.lock names, and nothing whose hash is another.
LOCKED ?=
LOCK := requirements-dev.lock
ifneq ($(LOCKED),)
ifneq ($(filter-out %.stamp-python,$(wildcard $(VENV)/.stamp-*)),)
ifeq ($(wildcard $(VENV)/.stamp-locked),)
$(error $(VENV) was installed without LOCKED=1: remove it with make clean, or name another folder with VENV=build/locked)
endif
endif
endif
# It resolves for every Python and platform at once.
UV := build/uv
UV_VERSION := 0.13.9
# Engines of the long run of hostile ones.
SOAK_ENGINES ?= 50000
# pyright takes node from the wheel beside it, never from the machine or the network.
export PYRIGHT_PYTHON_GLOBAL_NODE := 0
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
export NO_MKDOCS_2_WARNING := 1
CODE := src tests tools benchmarks $(wildcard examples)

.DEFAULT_GOAL := help
.PHONY: help demo check layout lint gates floors mypy pyright test quick test-triton36 manifest soak bench docs requirements lock wheel clean format

help:  ## show this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## */  make \1\t/' | expand -t 22

demo: $(VENV)/.stamp-run  ## build an engine from our own LeNet, classify digits, show layer times
	@$(BIN)/python examples/01_mnist/classify.py

test: $(VENV)/.stamp-test  ## run the tests, the quick ones first; writes build/test-report.json
	@$(TESTS_EXIST)
	@$(BIN)/python -m pytest $(TESTS) -n $(JOBS) --test-report build/test-report.json --durations=10 --durations-min=5

quick: $(VENV)/.stamp-test  ## run most of the tests, without those that take longest
	@$(TESTS_EXIST)
	@$(BIN)/python -m pytest $(TESTS) -n $(JOBS) -m "not slow and not shared" $(COMPILING:%=--ignore=%)

test-triton36:  ## compile kernels for GPUs with Triton 3.6, in an environment of its own
	@$(MAKE) --no-print-directory VENV=$(TRITON36) PINS='triton==3.6.*' $(TRITON36)/.stamp-test
	@$(TRITON36)/bin/python -m pytest tests/backends/cuda -n $(JOBS)

manifest: $(VENV)/.stamp-test  ## compare all generated code with the manifest in tests/golden/code; UPDATE=1 writes it
	@$(BIN)/python -m tools.code_manifest $(if $(UPDATE),--update)

# Quick ones first; of those that take a minute each, two at a time.
check: $(VENV)/.stamp-dev  ## every gate: format, lint, sizes, rooms, floors, types
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target layout lint gates floors pyright mypy

layout lint gates floors mypy pyright: $(VENV)/.stamp-dev

layout:
	@$(BIN)/ruff format --check --quiet --output-format concise $(CODE) || { echo "run make format" >&2; exit 1; }

lint:
	@$(BIN)/ruff check --quiet --output-format concise $(CODE)

gates:
	@$(BIN)/python tools/gates.py

floors:
	@$(BIN)/lint-imports --no-logo

mypy:
	@$(BIN)/mypy $(CODE)

# A larger nursery for new objects: node spends a sixth less time on garbage.
pyright:
	@NODE_OPTIONS="$$NODE_OPTIONS --max-semi-space-size=64" $(BIN)/pyright $(CODE)

format: $(VENV)/.stamp-dev  ## format the code and mend what ruff can mend
	@$(BIN)/ruff format $(CODE)
	@$(BIN)/ruff check --fix $(CODE)

soak: $(VENV)/.stamp-test  ## run what takes hours: fuzzers at their full length
	@$(BIN)/python -m tests.fuzz.engines --count $(SOAK_ENGINES)
	@$(BIN)/python -m tests.fuzz.builds --count 200000 --seed $(SEED)
	@$(BIN)/python -m tests.property.shape_pairs --count 11000 --seed $(SEED)
	@$(BIN)/python -m tests.property.kernel_views --count 100000 --seed $(SEED)
	@TRITON_INTERPRET=1 $(BIN)/python -m tests.property.gpu_kernel_views --count 3000 --seed $(SEED)

bench: $(VENV)/.stamp-bench  ## measure everything beside other engines; renews README and docs
	@$(BIN)/python benchmarks/run_all.py --prepare
	@$(BIN)/python benchmarks/run_all.py

docs: $(VENV)/.stamp-docs  ## build the documentation into site/
	@$(BIN)/python -m mkdocs build --strict --quiet

requirements:  ## say which requirements the last `make test` proved
	@$(or $(wildcard $(BIN)/python),python3) tools/requirements.py

lock: $(UV)/bin/uv  ## pin what development needs, with hashes: requirements-dev.lock; UPGRADE=--upgrade renews it
	@printf 'hatchling>=1.27\neditables>=0.5\n' | $(UV)/bin/uv pip compile --quiet --universal --python-version 3.11 \
	  --generate-hashes --no-annotate --custom-compile-command "make lock" $(UPGRADE) --extra dev pyproject.toml - --output-file $(LOCK)

$(UV)/bin/uv: $(VENV)/.stamp-python
	@$(BIN)/python -m venv $(UV)
	@$(UV)/bin/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

wheel: $(VENV)/.stamp-dev  ## build the wheel into dist/
	@$(BIN)/python -m build --wheel --outdir dist .

clean:  ## remove the environment and everything that was built
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis

# ---- environments: one folder, extras added as targets need them; dev has all the others in it

$(VENV)/.stamp-python:
	@set -e; for python in $(PYTHON) $(if $(PYTHON),,python3 python3.14 python3.13 python3.12 python3.11); do \
	  if command -v $$python >/dev/null 2>&1 && \
	     $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then found=$$python; break; fi; \
	done; \
	if [ -z "$${found:-}" ]; then \
	  echo "smelt needs Python 3.11 or newer: install it, or name one with make PYTHON=/path/to/python" >&2; exit 1; \
	fi; \
	echo "creating $(VENV) with $$found"; \
	$$found -m venv $(VENV) || { echo "this Python cannot make environments: install its venv package (Debian: apt install python3-venv)" >&2; exit 1; }; \
	touch $@

$(VENV)/.stamp-%: $(VENV)/.stamp-python pyproject.toml $(if $(LOCKED),$(LOCK))
	@if [ $(VENV)/.stamp-dev -nt pyproject.toml ] $(if $(LOCKED),&& [ $(VENV)/.stamp-locked -nt $(LOCK) ]); then :; \
	elif [ -n "$(LOCKED)" ]; then \
	  echo "installing smelt (locked)"; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $(LOCK) && \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable . && \
	  touch $(VENV)/.stamp-dev $(VENV)/.stamp-locked; \
	else \
	  echo "installing smelt ($*)"; rm -f $(VENV)/.stamp-locked; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.$(if $(filter run,$*),,[$*])' $(PINS:%='%'); \
	fi
	@touch $@

.SECONDARY:
