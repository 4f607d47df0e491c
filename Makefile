# Every command of this project. `make` alone lists them.

PYTHON ?= python3
PY     := .venv/bin/python
NB     ?=
URL    ?=
FILES  ?=
PORT   ?= 8000
# Two workers, a whole file each; every worker computes with one thread, so that two do not fight over two cores.
WORKERS ?= 2
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1
PYTEST  := $(ONE_THREAD) $(PY) -m pytest -q -n $(WORKERS) --dist loadfile
NBVAL   := --nbval --nbval-current-env --nbval-cell-timeout 120 --nbval-kernel-startup-timeout 180

.DEFAULT_GOAL := help
.PHONY: help environment book test test-lib test-notebooks test-site refresh labs mutate measure serve lint format environments constraints set-repository clean

help:            ## list the commands
	@grep -hE '^[a-z-]+: .*## ' $(MAKEFILE_LIST) | sort | sed -E 's/^([a-z-]+):.*## (.*)/  make \1|\2/' | awk -F'|' '{ printf "%-24s %s\n", $$1, $$2 }'

environment:     ## make .venv and install the pins (the other commands do this for you)
	@$(PYTHON) scripts/environment.py

book: environment ## build the book, strictly, and say which page to open
	@$(PY) -m scripts.build_book

test: environment ## prove everything: unit tests, docstrings' examples, every notebook's outputs
	@$(PYTEST) $(NBVAL) --doctest-modules lib book tests

test-lib: environment ## only lib: unit tests and docstrings' examples
	@$(PYTEST) --doctest-modules lib tests --ignore tests/book

test-notebooks: environment ## only the notebooks; NB=book/equation.ipynb for one
	@$(PYTEST) $(if $(NB),-n 0) $(NBVAL) $(or $(NB),book)
	@$(PY) -m scripts.notebook_rules $(NB)

test-site: environment ## look at the built pages in Chromium (needs chromium, and `make book` before)
	@$(PY) -m pytest -q tests/site

refresh: environment ## run the notebooks and store what changed; NB=book/equation.ipynb for one
	@$(ONE_THREAD) $(PY) -m scripts.refresh_notebooks $(NB)

labs: environment ## make the students' versions of the labs from book/labs/solutions; COURSE=folder for nbgrader
	@$(ONE_THREAD) $(PY) -m scripts.release_labs $(if $(COURSE),--course $(COURSE))

mutate: environment ## break the cores of attention on purpose: do the tests notice? FILES=lib/masks.py for one
	@$(ONE_THREAD) $(PY) -m scripts.mutate $(FILES)

measure: environment ## measure speed and memory anew for the book (half an hour, on a machine that does nothing else)
	@mkdir -p build && $(PY) -m lib.bench --json > build/cpu.json || [ $$? = 1 ]
	@mv build/cpu.json lib/bench/stored/cpu.json && $(PY) -m lib.bench --show || [ $$? = 1 ]

serve: book      ## build the book and serve it on this machine; PORT=8000
	@echo "http://127.0.0.1:$(PORT)/  (stop with Ctrl-C)"
	@$(PY) -m http.server --bind 127.0.0.1 --directory _build/html $(PORT)

lint: environment ## check code, notebooks, spelling, links and workflows
	@$(PY) -m scripts.lint

format: environment ## format the code, notebooks included
	@$(PY) -m ruff check --fix -q . && $(PY) -m ruff format -q .

environments: environment ## compare the notebooks under other threads, processors and versions
	@$(PY) -m scripts.check_environments

constraints: environment ## pin what the requirements bring along, after a change of requirements.txt
	@$(PY) -m scripts.write_constraints

set-repository: environment ## tell the book its address: URL=https://github.com/OWNER/NAME
	@$(PY) -m scripts.set_repository $(URL)

clean:           ## remove what the other commands made (.venv too)
	rm -rf .venv .envs .cache _build build .pytest_cache .ruff_cache .hypothesis .coverage htmlcov *.egg-info
	find lib tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +
