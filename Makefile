# Two commands for a fresh machine with Python, pip and make:  make demo   make test
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test site docs setup format clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: setup
	if test -d runs/demo; then $(BIN)/particleaugment resume runs/demo; \
	else $(BIN)/particleaugment train digits --out runs/demo; fi

test: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses=2 --dist=loadfile

site: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m site tests

docs: setup
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --nitpicky --quiet docs build/docs
	@echo "page to open: build/docs/index.html"

format: setup
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
