# Everything sets itself up: `make demo` and `make test` work on a fresh machine with Python 3.11 or newer.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# The CPU build of torch, so that no CUDA packages come; pyproject.toml accepts a range.
TORCH  := torch==2.13.0

PIP    := $(BIN)/pip install --quiet --disable-pip-version-check
# The wheel is tried in an environment of its own, outside the checkout's.
TRIAL  := build/trial

.PHONY: demo test test-slow test-chaos check wheel bench docs notebooks results setup clean

demo: $(VENV)/.core
	$(BIN)/cvfl demo

test: setup
	$(BIN)/pytest -n 2

test-slow: setup
	$(BIN)/pytest -n 2 -m "slow and not chaos"

# A thousand kills in fifty runs of real processes; CVFL_CHAOS=10-19 does some of them.
test-chaos: setup
	$(BIN)/pytest -m chaos tests/conformance/test_chaos.py

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(MAKE) test

bench: setup
	$(BIN)/cvfl bench codec
	$(BIN)/cvfl bench round

# The documentation site, into site/. Its reference pages are made from the code.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

# Tables and figures of docs/results again, from the runs that are recorded there; nothing is trained.
results: setup
	for study in $(sort $(dir $(wildcard docs/results/*/study.toml))); do $(BIN)/cvfl report $$study --publish $$study || exit 1; done
	$(BIN)/cvfl audit --resume $$(dirname docs/results/privacy_*/runs/*/seed-*/audit.json) --out docs/results/privacy

# What the cells of examples/notebooks show, made anew: two minutes.
notebooks: setup
	OMP_NUM_THREADS=1 $(BIN)/python examples/notebooks/execute.py

# What users get: an sdist and a wheel, the wheel alone in an empty environment, the demo there.
wheel: setup
	rm -rf dist $(TRIAL)
	$(BIN)/python -m build --outdir dist
	$(PYTHON) -m venv $(TRIAL)
	$(TRIAL)/bin/pip install --quiet --disable-pip-version-check $(TORCH)
	$(TRIAL)/bin/pip install --quiet --disable-pip-version-check $(TORCH) dist/cvfl-*.whl
	cd $(TRIAL) && PYTHONPATH= bin/cvfl --version && PYTHONPATH= bin/cvfl demo --epochs 5

setup: $(VENV)/.ready

# The package and what it needs. A mark is there only while the environment is whole: after an interruption the next
# `make` starts from nothing, and after a change of pyproject.toml pip adds what is missing.
$(VENV)/.core: pyproject.toml Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "cvfl needs Python 3.11 or newer; set PYTHON=")'
	@test -e $@ || $(PYTHON) -m venv --clear $(VENV)
	@rm -f $@
	@echo "setting up: PyTorch (CPU), some hundred megabytes the first time ..."
	@$(PIP) $(TORCH)
	@echo "installing cvfl and what it needs ..."
	@$(PIP) --editable . $(TORCH)
	@touch $@

# The same, with what tests, checks and the other runtimes need.
$(VENV)/.ready: $(VENV)/.core
	@rm -f $< $@
	@echo "installing what tests and checks need ..."
	@$(PIP) --editable '.[dev]' $(TORCH)
	@touch $< $@

# The same, with what the site needs. The first mark comes back as old as it was, so that the other ones stay valid.
$(VENV)/.docs: $(VENV)/.core
	@mv $< $@.part
	@echo "installing what the documentation site needs ..."
	@$(PIP) --editable '.[docs]' $(TORCH)
	@mv $@.part $<
	@touch $@

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
