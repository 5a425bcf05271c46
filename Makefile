# Every command of the project. Each makes what it needs: nothing has to be installed by hand.
#
#   make test     build, then run the tests          make bench    build, then run the benchmark
#   make sanitize random problems through the CPU kernels under sanitizers
#   make ladder   the published kernels, measured    make tune     sweep the CUDA tables (GPU, nvcc)
#   make lint     format and lint checks             make format   apply them
#   make matrix   the tests under the oldest, the pinned and the newest torch, and the pinned one under each of PYTHONS
#   make package  wheel and sdist, checked, and the wheel used in an environment of its own
#   make docs     the API documentation              make sanitize-cuda   compute-sanitizer (GPU)
#   make clean    remove what builds left
#
# Everything runs in a local .venv. It sees the packages of PYTHON when that has torch 2.11 or later; otherwise it
# gets the torch pinned here. TORCH=x.y.z or TORCH=newest asks for a version of its own (with another VENV to keep both).
PYTHON ?= python3
PYTHONS ?=
VENV ?= .venv
TORCH ?= auto
PINNED_TORCH := 2.13.0
MATRIX := 2.11.0 $(PINNED_TORCH) newest
PY := $(VENV)/bin/python
# Programs that pip found installed beside the active Python's torch are not installed again.
TOOLS := PATH="$(abspath $(VENV))/bin:$(shell $(PYTHON) -c 'import os, sys; print(os.path.dirname(sys.executable))'):$$PATH"
DEPENDENCIES := "setuptools>=64" wheel "cmake>=3.22" ninja "pytest>=8" "numpy>=1.26" "scikit-learn>=1.4" "pillow>=10" rich \
  "matplotlib>=3.8"
LINTERS := "ruff==0.17.*" "clang-format==23.*"
PACKAGERS := "build>=1" "twine>=5"
DOCUMENTERS := "sphinx>=7"
ARGS ?=

.PHONY: test sanitize bench ladder tune lint format matrix package docs sanitize-cuda build clean
.NOTPARALLEL:

test: build
	$(PY) -m pytest $(ARGS)

bench: build
	$(PY) -m benchmarks $(ARGS)

# The property test of the CPU kernels, which needs no torch, in each instruction set of this machine: under Address-
# and UndefinedBehaviorSanitizer, then under ThreadSanitizer, which cannot be combined with them and is slower.
sanitize: $(VENV)/ready
	set -e; for run in address,undefined:20000 thread:3000; do \
	  kind=$${run%:*}; folder=build/property-$${kind%,*}; \
	  $(TOOLS) cmake -GNinja -DTX_SANITIZE=$$kind -Stests -B$$folder; \
	  $(TOOLS) cmake --build $$folder; \
	  $$folder/cpu_property --cases $${run#*:} $(ARGS); \
	done

ladder: build
	$(PY) -m benchmarks.ladder $(ARGS)

tune: build
	$(PY) -m benchmarks.tune $(ARGS)

build: $(VENV)/ready
	$(PY) setup.py --quiet build_ext --inplace

$(VENV)/ready: Makefile
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or later is needed; set PYTHON")'
	$(PYTHON) -m venv $(VENV)
ifeq ($(TORCH),auto)
	if $(PYTHON) -c 'import torch, sys; sys.exit(tuple(map(int, torch.__version__.split(".")[:2])) < (2, 11))' 2>/dev/null; then \
	  $(PYTHON) -c 'import site, sys; print(*(p for p in sys.path if p.endswith("-packages")), sep="\n")' \
	    > "$$($(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/outer.pth"; \
	else \
	  $(PY) -m pip install --quiet torch==$(PINNED_TORCH); \
	fi
else ifeq ($(TORCH),newest)
	$(PY) -m pip install --quiet --upgrade torch
else
	$(PY) -m pip install --quiet torch==$(TORCH)
endif
	$(PY) -m pip install --quiet $(DEPENDENCIES)
	touch $@

CPP_FILES := $(shell git ls-files '*.cpp' '*.h' '*.cu' '*.cuh' 2>/dev/null)

lint: $(VENV)/ready
	$(PY) -m pip install --quiet $(LINTERS)
	$(TOOLS) ruff check .
	$(TOOLS) ruff format --check .
	$(TOOLS) clang-format --dry-run --Werror $(CPP_FILES)

format: $(VENV)/ready
	$(PY) -m pip install --quiet $(LINTERS)
	$(TOOLS) ruff check --fix .
	$(TOOLS) ruff format .
	$(TOOLS) clang-format -i $(CPP_FILES)

matrix:
	for torch in $(MATRIX); do $(MAKE) test VENV=.venv-torch-$$torch TORCH=$$torch || exit 1; done
	for python in $(PYTHONS); do \
	  tag=$$($$python -c 'import sys; print(sys.implementation.cache_tag)') && \
	  $(MAKE) test PYTHON=$$python VENV=.venv-$$tag TORCH=$(PINNED_TORCH) || exit 1; \
	done

# The wheel is made from the sdist, so an sdist that lacks a file fails here. It is then installed beside nothing but
# what $(VENV) was made of, and run from elsewhere.
package: $(VENV)/ready
	$(PY) -m pip install --quiet $(PACKAGERS)
	rm -rf dist .venv-package
	PATH="$(abspath $(VENV))/bin:$$PATH" $(PY) -m build --no-isolation --outdir dist
	$(PY) -m twine check --strict dist/*
	$(MAKE) .venv-package/ready VENV=.venv-package
	.venv-package/bin/python -m pip install --quiet --no-deps dist/*.whl
	cd dist && ../.venv-package/bin/python -m torch_transpose info

docs: build
	$(PY) -m pip install --quiet $(DOCUMENTERS)
	$(PY) -m sphinx -W --keep-going -q docs docs/build

sanitize-cuda: build
	$(PY) -m tests.sanitize $(ARGS)

clean:
	rm -rf build dist docs/build .venv* torch_transpose/*.so torch_transpose/_build_info.json
