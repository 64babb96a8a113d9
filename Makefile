# make demo   a testnet of three daemons and the Spark pipeline, on sample events
# make test   the test suite
#
# Both install what they need into .venv first; nothing outside this folder is touched. Without a
# compiler: make demo WHEELS=DIRECTORY, with the wheels of a release or of `make dist`.

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
RUNNABLE := $(VENV)/.runnable
RESULTS := benchmarks/results

# The tests start more than a hundred processes. Where bytecode is not cached, as containers often
# have it, each of them compiles everything again.
export PYTHONDONTWRITEBYTECODE :=

# Two more processes than cores, because tests also wait for disks, timers and other processes: with one
# more, two cores stand still for two fifths of the time, with two more for a quarter.
WORKERS = $(shell expr $$(nproc) + 2)

# tests/support/watchdog.py fails a test that hangs. One that keeps even Python's signal handlers from running
# ends its process, which shows where its threads are, and with it the run.
HANGS = -o faulthandler_timeout=600 -o faulthandler_exit_on_timeout=true

.PHONY: help demo test test-long lint check docs install native dist lock attack journeys bench bench-docs clean

help:  ## Show this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

demo: $(RUNNABLE)  ## Run three daemons and the Spark pipeline on sample events
	$(BIN)/python -m benchmarks.demo

test: $(INSTALLED)  ## Run the test suite (a few minutes)
	$(BIN)/python -m pytest -m "not long" -n $(WORKERS) --maxprocesses 4 \
		--dist loadfile --no-loadscope-reorder --max-worker-restart 0 $(HANGS)

test-long: $(INSTALLED)  ## Run the long tests too: many more random cases
	HYPOTHESIS_PROFILE=long $(BIN)/python -m pytest

lint: $(INSTALLED)  ## Check style, types, imports and unused code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/basedpyright
	$(BIN)/lint-imports
	$(BIN)/python -m vulture

check: lint test  ## Run lint and test, as CI does

docs: $(INSTALLED)  ## Build the documentation site: build/docs/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict -f config/mkdocs.yml
	$(BIN)/python config/reference.py build/docs/reference/python
	$(BIN)/python config/check_links.py build/docs

bench: $(INSTALLED)  ## Run the benchmarks at small sizes (a minute)
	$(BIN)/python -m benchmarks.key_store --keys 100000
	$(BIN)/python -m benchmarks.reconcile --keys 10000,100000 --differences 0,1,100
	$(BIN)/python -m benchmarks.round_trips --keys 100000 --differences 0,1,100

attack: $(INSTALLED)  ## Attack nodes on the loopback, and compare with bounds (a quarter of an hour)
	$(BIN)/python -m benchmarks.attack

journeys: $(INSTALLED)  ## Count the files that messages, events, merges and rows cross
	$(BIN)/python -m benchmarks.journeys

bench-docs: $(INSTALLED)  ## Regenerate docs/benchmarks.md (a quarter of an hour)
	$(BIN)/python -m benchmarks.key_store --keys 1000000 --json $(RESULTS)/key_store.json
	$(BIN)/python -m benchmarks.reconcile --keys 10000,100000,1000000 --json $(RESULTS)/reconcile.json
	$(BIN)/python -m benchmarks.round_trips --keys 1000000 --json $(RESULTS)/round_trips.json
	$(BIN)/python -m benchmarks.spark --events 1000000 --json $(RESULTS)/spark.json
	$(BIN)/python -m benchmarks.publish $(RESULTS)/*.json --out docs

PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check --progress-bar off

install: $(INSTALLED)  ## Install everything into .venv

native: $(INSTALLED)  ## Build the native core, which is optional, into .venv (needs Rust 1.89)
	@$(PIP) --no-deps --force-reinstall ./native

# Of the lock's packages, for this version of Python and this kind of machine.
APP := build/app

dist: $(RUNNABLE)  ## Build dist/: wheels for machines without a compiler, and the node as one file
	@rm -rf dist $(APP)
	@mkdir -p $(APP)
	@$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist . ./config/client
	@awk '/^[a-z]/ {keep = /^(cbrrr|fastecdsa)==/} keep' requirements/node.lock > $(APP)/sdists.lock
	@$(BIN)/python -m pip wheel --quiet --no-deps --require-hashes --wheel-dir dist --requirement $(APP)/sdists.lock
	@$(PIP) --target $(APP)/site --require-hashes --requirement requirements/node.lock
	@$(PIP) --target $(APP)/site --no-deps dist/recon_node-*.whl
	@$(PIP) --target $(APP)/shiv 'shiv>=1.0.8,<2'
	@PYTHONPATH=$(APP)/shiv $(BIN)/python -m shiv --compressed --reproducible --python '/usr/bin/env python3' \
		--site-packages $(APP)/site --console-script recon-node --output-file dist/recon-node.pyz
	@ls -sh dist

# What the node and the pipeline need: two thirds of what the tests and checks need as well.
$(RUNNABLE): pyproject.toml requirements/spark.lock requirements/build.lock
	@WHEELS="$(WHEELS)" sh config/preflight.sh
	@test -x $(BIN)/python || $$(sh config/preflight.sh --python) -m venv $(VENV)
	@echo "Installing the node and the pipeline into $(VENV) (only once: 1.3 GB, a few minutes) ..."
	@$(PIP) --upgrade pip
	@test -z "$(WHEELS)" || $(PIP) --no-index --no-deps --find-links "$(WHEELS)" cbrrr fastecdsa
	@$(PIP) --require-hashes --requirement requirements/spark.lock
	@$(PIP) --require-hashes --requirement requirements/build.lock
	@$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

$(INSTALLED): $(RUNNABLE) requirements.lock
	@echo "Installing what tests and checks need into $(VENV) (only once: 0.7 GB) ..."
	@$(PIP) --require-hashes --requirement requirements.lock
	@touch $@

# All are made from one resolution, so that they name the same versions.
COMPILE = uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate

lock:  ## Update the lock files from pyproject.toml (needs uv)
	$(COMPILE) --upgrade --extra dev pyproject.toml --output-file requirements.lock
	$(COMPILE) --constraint requirements.lock --extra anchor pyproject.toml --output-file requirements/node.lock
	$(COMPILE) --constraint requirements.lock --extra anchor --extra spark --extra postgres --extra kafka pyproject.toml --output-file requirements/spark.lock
	printf 'hatchling>=1.25\nhatch-vcs>=0.5,<0.6\neditables\n' | $(COMPILE) --upgrade --constraint requirements.lock - --output-file requirements/build.lock
	for file in requirements.lock requirements/*.lock; do \
		sed -i '1i # Made by `make lock` from pyproject.toml (see CONTRIBUTING.md).' $$file; done

clean:  ## Remove the virtual environment and all caches
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
