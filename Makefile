# Everything a person or CI does here. `make` alone lists it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.complete
UV := $(shell command -v uv)
INSTALL := $(if $(UV),uv pip install --quiet --python $(BIN)/python,$(BIN)/python -m pip install --quiet --disable-pip-version-check)
SPREAD := --dist loadgroup --no-loadscope-reorder
# what a fresh machine may lack, reported before pip fails with a hundred lines
NO_PYTHON = Python 3.11 or newer is needed; found $$($(PYTHON) --version 2>&1). Name another one: make PYTHON=python3.12
NO_VENV = Python cannot make virtual environments here; on Debian and Ubuntu: apt-get install python3-venv
NO_NETWORK = No package can be had here. Without network: connect, or point PIP_INDEX_URL or PIP_FIND_LINKS at a mirror. The last line of what was tried:
NO_INSTALL = Packages could not be installed. If pip speaks of a missing compiler above, install one (Debian and Ubuntu: apt-get install build-essential; macOS: xcode-select --install)

# a request for the first package that the build needs: it fails within seconds where an installer would try for minutes
REACH := $(if $(UV),UV_HTTP_RETRIES=1 UV_HTTP_TIMEOUT=5 uv pip install --python $(BIN)/python --reinstall,$(BIN)/python -m pip install --disable-pip-version-check --ignore-installed --retries 1 --timeout 5) --quiet --dry-run --no-deps 'setuptools>=77'

# the same inputs for every commit; `make verify` draws different ones
SEED := --seed 270460944460190

# the oldest supported torch, on Python 3.12
PYTHON312 ?= $(firstword $(wildcard $(shell pyenv root 2>/dev/null)/versions/3.12*/bin/python) python3.12)
OLDEST := build/oldest
NEXT := build/next

.PHONY: help setup demo site lab test slow session budget soak sample verify project lint notebooks bench netlab ray check
.PHONY: nightly longest pages wheel term gpu foreign bodies deepspeed frameworks horovod oracles attacks coverage smoke next parts
help:  ## list what there is
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: $(STAMP)  ## make .venv and install everything into it

$(STAMP): pyproject.toml autograder/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(NO_PYTHON)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "$(NO_VENV)"; exit 1; }
	@said=$$($(REACH) 2>&1) || { echo "$(NO_NETWORK)"; echo "$$said" | tail -n 1; exit 1; }
	@echo "Installing into $(VENV); the first time this takes a few minutes."
	@$(INSTALL) -c constraints.txt -e '.[dev]' -e ./autograder \
	  || { echo; echo "$(NO_INSTALL)"; exit 1; }
	@touch $@

site: setup  ## build the course as pages to read and search, executed, into build/site/html
	@$(BIN)/python website $(ARGS)

demo: setup  ## execute week 1, grade a sample class, write build/demo/index.html
	@$(BIN)/autograder demo

lab: setup  ## open JupyterLab at the course, week 1 in front
	@$(BIN)/jupyter lab --config=jupyter_lab_config.py weeks/week01_why_one_gpu_is_not_enough.ipynb

notebooks: setup  ## build the notebooks of weeks/, solutions/ and labs/ from their scripts
	@$(BIN)/autograder build

test: setup  ## run the fast tests, five minutes on two cores
	@$(BIN)/python -m pytest -n auto $(SPREAD) $(ARGS)

slow: setup  ## run the slow tests: whole weeks, labs, classes and pages of docs/, browsers, hundreds of drawn cases
	@$(BIN)/python -m pytest -n auto $(SPREAD) -m 'slow and not netlab and not ray' $(ARGS)

session: setup  ## run the fast and the slow tests in one session; with ARGS='--draw 6', a sixth of those over 5 s, as CI does
	@$(BIN)/python -m pytest -n auto $(SPREAD) -m 'not netlab and not ray' $(ARGS)

budget: setup  ## run the fast tests, and fail those that have grown slow; needs an idle machine
	@$(BIN)/python -m pytest -n auto $(SPREAD) --budget

soak: setup  ## run the fast tests twenty times in random order, while one process per core keeps the machine busy
	@$(BIN)/python tests/bench/soak.py $(ARGS)

sample: setup  ## grade a sample of the known answers, as CI does: one of each lab, different ones for each commit
	@$(BIN)/autograder verify --sample 1 $(SEED)

verify: setup  ## grade every known answer of the labs without real jobs, each on five draws of its inputs
	@$(BIN)/autograder verify --seeds 5

project: setup  ## grade every known answer of the labs and projects with real jobs, one at a time
	@$(INSTALL) -c constraints.txt -e '.[ray]'
	@$(BIN)/autograder verify --real-jobs
	@$(BIN)/python -m pytest -n 0 -m 'ray and nightly' --nightly

lint: setup  ## run ruff and pyright, and check that the built notebooks are up to date
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright
	@$(BIN)/autograder build --check

bench: site  ## measure every figure that the project claims, into build/bench.json
	@$(BIN)/python tests/bench

parts: setup  ## run a sixth of the parts of `make bench` at their smallest size, a different sixth for each commit
	@$(BIN)/python tests/bench --smallest

gpu: setup  ## run every path that uses GPUs, and record the results in docs/measured; without a GPU, say so
	@$(BIN)/python tests/bench/on_gpus.py $(ARGS)

netlab: setup  ## compare the emulator with real hosts in network namespaces of this machine (needs Linux and root)
	@PYTHONPATH=tests/support $(BIN)/python -m netlab
	@$(BIN)/python -m pytest -m netlab tests/e2e/test_project1_on_two_hosts.py

ray: setup  ## install Ray, then grade a class on a Ray cluster started here, and answers to lab 13a
	@$(INSTALL) -c constraints.txt -e '.[ray]'
	@$(BIN)/python -m pytest -m ray

foreign: setup  ## install transformers, and run its Llama, unmodified, emulated and on paper
	@$(INSTALL) -c constraints.txt -e '.[transformers]'
	@WORLDSIZE_REQUIRE=transformers $(BIN)/python -m pytest -m '' tests/library/paper/test_foreign_models.py

bodies: setup  ## run torch's own tests of torch.distributed as ranks, on Gloo and emulated; list them in docs/measured
	@PYTHONPATH=tests/support $(BIN)/python -m torch_bodies $(ARGS)

deepspeed: setup  ## install DeepSpeed, and run week 7's comparison of its stages with torch's DDP
	@DS_BUILD_OPS=0 $(INSTALL) -c constraints.txt -e '.[deepspeed]'
	@DS_ACCELERATOR=cpu WORLDSIZE_REQUIRE=deepspeed $(BIN)/python -m pytest -m '' tests/e2e/test_week07_deepspeed.py

frameworks: setup horovod  ## install the optional packages of weeks 7, 8, 11 and 13 and lab 13b, and run what uses them; WORLDSIZE_RECORD=1 records it
	@DS_BUILD_OPS=0 $(INSTALL) -c constraints.txt -e '.[deepspeed,fairscale,hta,megatron,mpi,ray,tensorflow,torchft]'
	@WORLDSIZE_REQUIRE=deepspeed,frameworks,hta $(BIN)/python -m pytest -m '' \
	  tests/e2e/test_week07_deepspeed.py tests/e2e/test_week08.py tests/e2e/test_week11.py tests/e2e/test_week13.py tests/e2e/test_lab13b.py

horovod: setup  ## build Horovod for this torch unless it is installed: patch it, compile it, try it on two ranks
	@sh frameworks/build_horovod.sh $(BIN)/python

check: setup  ## run this before you propose a change: lint, the demo, the tests (of those over 5 s a sixth), samples of known answers and of `make bench`
	@$(MAKE) --jobs=2 --output-sync=target lint demo  # each keeps one core busy, as do the two below
	@$(MAKE) session ARGS='--draw 6'
	@$(MAKE) --jobs=2 --output-sync=target sample parts

nightly: session ray verify project longest oracles attacks coverage bench budget soak smoke next frameworks bodies pages wheel term  ## run everything that takes longer than CI may; each part is a target of its own

pages: site  ## check the whole site: links, hidden answers, widths, themes, sizes
	@$(BIN)/python -m pytest -n 0 -m '' --nightly tests/browser/test_site.py

term: setup  ## play through a term with forty students, using an instructor's commands
	@$(BIN)/python -m pytest -n 0 -m '' --nightly tests/e2e/test_term.py

longest: setup  ## run the tests that CI has no time for: long pages of docs/, reports of projects, a class of Project 3
	@$(BIN)/python -m pytest -n 0 -m 'nightly and not ray' --nightly --ignore=tests/e2e/test_wheel.py --ignore=tests/e2e/test_image.py --ignore=tests/e2e/test_places.py --ignore=tests/e2e/test_hub.py --ignore=tests/e2e/test_term.py --ignore=tests/browser/test_students_install.py

wheel: setup  ## build the distributions and the image and try what they install; start a hub; run a week from the zip
	@$(BIN)/python -m pytest -n 0 -m nightly --nightly tests/e2e/test_wheel.py tests/e2e/test_image.py tests/e2e/test_places.py tests/e2e/test_hub.py tests/browser/test_students_install.py

oracles: setup  ## compute the quiz bank's answers in a second way, on full samples
	@$(BIN)/python -m pytest -n auto $(SPREAD) -m '' --nightly tests/quiz/test_quiz_bank.py

attacks: setup  ## run the attacks on the sandbox while one process per core keeps the machine busy
	@$(BIN)/python tests/bench/under_load.py $(BIN)/python -m pytest -m '' tests/autograder/judging/test_attacks.py

coverage: setup  ## measure which share of each package the fast tests run, ranks included, into build/coverage.json
	@PYTHONPATH=tests/support $(BIN)/python -m pytest -n auto $(SPREAD) --cov=worldsize --cov=autograder --cov-config=tests/support/coverage.toml --cov-report=json:build/coverage.json
	@$(BIN)/python tests/support/coverage_by_folder.py build/coverage.json

next: setup  ## run the fast tests with the newest torch, and list the rows of docs/patches.md that fail there
	@test -x $(NEXT)/bin/python || $(PYTHON) -m venv $(NEXT)
	@mkdir -p build && grep -v "^torch==" constraints.txt > build/next.txt
	@$(NEXT)/bin/python -m pip install --quiet --disable-pip-version-check -c build/next.txt --upgrade torch -e '.[dev]'
	@-$(NEXT)/bin/python -m pytest -n auto $(SPREAD) --junitxml=build/next.xml
	@$(NEXT)/bin/python tests/bench/next_torch.py build/next.xml

smoke: setup  ## run the library's tests with torch 2.11 on Python 3.12, if that is installed
	@if ! $(PYTHON312) -c '' 2>/dev/null; then echo "Skipped: there is no Python 3.12 here (make smoke PYTHON312=PATH)."; exit 0; fi; \
	  set -e; test -x $(OLDEST)/bin/python || $(PYTHON312) -m venv $(OLDEST); \
	  grep -v '^torch==' constraints.txt > build/oldest.txt; \
	  $(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check -c build/oldest.txt 'torch==2.11.*' -e '.[dev]'; \
	  $(OLDEST)/bin/python -m pytest -n auto $(SPREAD) -m 'not netlab and not ray' tests/library
