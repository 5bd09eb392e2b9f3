# Two commands for a fresh machine with Python, pip and make:  make demo   make test
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint kernels site docs setup format clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: setup
	@$(BIN)/particleaugment compare digits --arms none,learned:filter=difficulty --seeds 0 --jobs 2 \
	  --set train_size=200 --set batch_size=32 --set epochs=100 --set crop=0 --out runs/demo
	@echo "try next, on your own images: $(BIN)/particleaugment train folder --set data_dir=PATH"

test: setup
	@$(MAKE) --no-print-directory --jobs=2 lint kernels
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses=3 --dist=loadfile

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

kernels: setup
	$(BIN)/python tests/compile_kernels.py

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
