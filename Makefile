# Two commands do everything on a fresh machine:  make demo   and   make check test
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest
TESTS := OMP_NUM_THREADS=1 $(PYTEST) src tests --doctest-modules -n 2 --dist loadgroup -m "not slow"

.PHONY: demo test coverage test-slow check format docs docs-serve clean

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[dev]'
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib src || true  # on all cores, where pip would take one
	@touch $@

demo: $(STAMP)
	$(BIN)/idensenet demo

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: $(STAMP)
	$(TESTS) --durations=15

coverage: $(STAMP)
	$(TESTS) --cov --cov-report=term

test-slow: $(STAMP)
	$(PYTEST) -m slow

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --clean

docs-serve: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
