# `make demo` and `make test` need only Python 3.11 and make; everything else is installed into .venv.
PYTHON ?= python3
# Another torch than that of requirements.txt has its own environment: make test TORCH=2.15.0
VENV := .venv$(TORCH)
BIN := $(VENV)/bin
# That torch decides what it needs: of the others, what it also needs may be of any version.
OTHERS = $(shell sed -n -e '/^\(torch\|setuptools\|sympy\|networkx\|jinja2\|fsspec\|filelock\|typing_extensions\)==/Id' -e '/^[a-zA-Z]/p' requirements.txt)
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Processes of tests at a time.
WORKERS ?= 2
# Tests and benchmarks share few cores: one thread per process.
export OMP_NUM_THREADS ?= 1

.PHONY: demo test test-all lint bench results site clean

$(VENV)/installed: pyproject.toml requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q $(if $(TORCH),torch==$(TORCH) $(OTHERS),-r requirements.txt)
	$(BIN)/pip install -q --no-deps -e .
	touch $@

demo: $(VENV)/installed
	$(BIN)/python examples/demo.py

test: $(VENV)/installed lint
	$(BIN)/pytest -n $(WORKERS) -m "not long"

test-all: $(VENV)/installed lint
	$(BIN)/pytest -n $(WORKERS)

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	# Benchmarks are scripts without types, but what they use must exist.
	$(BIN)/mypy --allow-untyped-defs $(foreach code,arg-type call-arg import-not-found list-item misc operator \
	  type-var union-attr unused-ignore,--disable-error-code $(code)) benchmarks/*.py

# What measures: neither what the others import nor what draws the page (tables.py).
BENCHMARKS := $(filter-out %/record.py %/architectures.py %/blocks.py %/published_runs.py %/tables.py,$(wildcard benchmarks/*.py))

bench: $(VENV)/installed
	for script in $(BENCHMARKS); do echo "== $$script"; $(BIN)/python $$script || exit 1; done

# The page of results, from the numbers that benchmarks kept under benchmarks/results with --json.
results: $(VENV)/installed
	$(BIN)/python benchmarks/tables.py

# The documentation as a static site, in build/site; any warning fails.
site: $(VENV)/installed
	$(BIN)/pip install -q "mkdocs-material==9.8.1"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf .venv* .mypy_cache .ruff_cache .pytest_cache
