# Each target sets up what it needs; on a fresh clone `make demo` or `make test` is the only command.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Small matrices on few cores: one thread per process, two processes side by side.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1

.PHONY: demo test test-slow test-engines test-minimum campaign check format api benchmark clean

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/finitegp demo

test: $(STAMP)
	$(BIN)/python -m pytest --numprocesses 2

test-slow: $(STAMP)
	$(BIN)/python -m pytest --numprocesses 2 -m slow

test-engines: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[botorch,optuna,dask,spark,onnx,shap,skops]"
	$(BIN)/python -m pytest -m engines

# With the lowest versions that pyproject.toml allows, in an environment of its own.
test-minimum:
	$(PYTHON) -m venv $(VENV)-minimum
	$(VENV)-minimum/bin/python -m pip install --quiet --constraint constraints-minimum.txt --editable ".[dev]"
	$(VENV)-minimum/bin/python -m pytest --numprocesses 2

# Damaged files, kills, full disks, odd arguments: about 15 minutes on two cores.
campaign: $(STAMP)
	$(BIN)/python -m campaign

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

api: $(STAMP)
	$(BIN)/python docs/make_api.py

benchmark: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt lightgbm
	$(BIN)/python -m benchmarks.quick
	$(BIN)/python -m benchmarks.render

clean:
	rm -rf $(VENV) $(VENV)-minimum .pytest_cache .mypy_cache .ruff_cache
