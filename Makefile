# Everything a person or CI does here. `make` alone lists it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.complete
SPREAD := --dist loadgroup --no-loadscope-reorder
# what a fresh machine may lack, told before pip can fail in a hundred lines
NO_PYTHON = Python 3.11 or newer is needed; found $$($(PYTHON) --version 2>&1). Name another one: make PYTHON=python3.12
NO_VENV = Python cannot make virtual environments here; on Debian and Ubuntu: apt-get install python3-venv
NO_INSTALL = Packages could not be installed. Without network: connect, or point PIP_INDEX_URL or PIP_FIND_LINKS at a mirror. If pip speaks of a missing compiler above, install one (Debian and Ubuntu: apt-get install build-essential; macOS: xcode-select --install)

.PHONY: help setup demo lab test lessons verify project lint notebooks bench netlab ray check
help:  ## list what there is
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: $(STAMP)  ## make .venv and install everything into it

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(NO_PYTHON)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "$(NO_VENV)"; exit 1; }
	@echo "Installing into $(VENV); the first time this takes a few minutes."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' \
	  || { echo; echo "$(NO_INSTALL)"; exit 1; }
	@touch $@

demo: setup  ## execute week 1, grade a sample class, write build/demo/index.html
	@$(BIN)/autograder demo

lab: setup  ## open JupyterLab at the course, week 1 in front
	@$(BIN)/jupyter lab --config=jupyter_lab_config.py weeks/week01_why_one_gpu_is_not_enough.ipynb

notebooks: setup  ## build the notebooks of weeks/, solutions/ and labs/ from their scripts
	@$(BIN)/autograder build

test: setup  ## run the tests
	@$(BIN)/python -m pytest -n auto $(SPREAD)

lessons: setup  ## run every week and every lab from top to bottom, and look at what they give
	@$(BIN)/python -m pytest -n auto $(SPREAD) -m lesson

verify: setup  ## grade every known answer of every lab, right, wrong and cheating
	@$(BIN)/autograder verify

project: setup  ## grade every known answer of project 1, one at a time, for their speed counts: nothing else may run
	@$(BIN)/autograder verify project1

lint: setup  ## ruff and pyright, and whether the built notebooks are up to date
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright
	@$(BIN)/autograder build --check

bench: setup  ## measure every figure that the project claims, into build/bench.json
	@$(BIN)/python tests/bench

netlab: setup  ## real hosts on this machine against the emulator (Linux and root)
	@$(BIN)/python -m worldsize.netlab

ray: setup  ## install Ray, and grade a class on a cluster of it that is started here
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[ray]'
	@$(BIN)/python -m pytest -m ray

check: lint test lessons verify  ## what CI runs
