# Two commands matter: `make reproduce` and `make test`. Both set everything up by themselves.
PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.installed

.PHONY: help setup reproduce test test-all picture mutants bench docs lint format build clean

help:           ## list the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## */\t/' | expand -t 14

setup: $(STAMP) ## make .venv with the tested versions (seconds when nothing changed)

# torch first and by its pin: a bare requirement would let the resolver take a larger build.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "calibrant needs Python 3.11 or newer; set PYTHON=python3.12, for example"; exit 1; }
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(PY) -m pip install --quiet --disable-pip-version-check $$(grep '^torch==' constraints.txt)
	$(PY) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

reproduce: setup ## both papers' experiments on a small scale: reports in out/bo4sc and out/meta-reg-digits
	$(PY) -m studies reproduce bo4sc --quick
	$(PY) -m studies reproduce meta-reg --quick

# One thread per process: pytest already uses two processes, and threads beyond the cores only wait for one another.
test test-all: export OMP_NUM_THREADS ?= 1
test: setup     ## the fast tests
	$(PY) -m pytest -n 2 --dist loadfile --durations=10

test-all: setup ## every test, the slow ones too
	$(PY) -m pytest -n 2 --dist loadfile -m ''

# The same picture code runs on both versions, unless the former version has its own.
picture: export OMP_NUM_THREADS = 1
picture: setup  ## compare what the code computes with that of another commit, to the bit: make picture BASE=<commit>
	@test -n "$(BASE)" || { echo "name the commit to compare with: make picture BASE=<commit>"; exit 1; }
	rm -rf out/base && mkdir -p out/base && git archive $(BASE) src tests | tar -x -C out/base
	test -f out/base/tests/picture.py || cp tests/picture.py out/base/tests/
	$(PY) -m tests.picture out/picture.json
	cd out/base && PYTHONPATH=src ../../$(PY) -m tests.picture ../picture-base.json
	$(PY) -m tests.picture out/picture-base.json out/picture.json

mutants: export OMP_NUM_THREADS = 1
mutants: setup  ## which small changes of the code no test notices, by room: make mutants ROOMS="losses report" COUNT=8 SEED=0
	$(PY) -m tests.mutants $(ROOMS) --count $(or $(COUNT),8) --seed $(or $(SEED),0)

bench: setup    ## measure, and write results/bench.json
	$(PY) -m studies.benchmarks

docs: setup     ## build the documentation into out/docs; a warning is an error
	rm -rf docs/api
	$(PY) -m sphinx -q -W --keep-going -d out/doctrees docs out/docs

lint: setup     ## style and types
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: setup   ## bring the code into style
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

build: setup    ## build the wheel into dist/
	rm -rf dist
	$(PY) -m build --wheel --outdir dist .

clean:          ## remove everything that was made
	rm -rf $(VENV) dist out docs/api .mypy_cache .ruff_cache .pytest_cache .hypothesis
