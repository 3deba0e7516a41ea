# make demo    install, then go from raw text to a report on the shipped sample
# make test    install with what tests need, then run every test
# make serve   install, then run Prefect's server, its UI and the deployments on 127.0.0.1; Ctrl-C stops them
# make lint    ruff check, ruff format --check, mypy
# make bench   run the CPU benchmarks in their quick forms, as a check; results go to build/benchmarks
# make carried fetch what `benchmarks.gpu measure` lacks on a machine without a network into build/carried
# make clean   remove the environment and build products; ./workspace stays
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
WITH_TESTS := $(VENV)/.installed-test

.PHONY: demo test serve lint bench carried clean
.DEFAULT_GOAL := demo

$(INSTALLED): EXTRA := notebooks
$(WITH_TESTS): EXTRA := test
# runs again only when the requirements change; compiles afterwards, as pip would use one core
$(INSTALLED) $(WITH_TESTS): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' || { echo "make needs Python 3.11 to 3.14, as the pinned torch has no others; try: make PYTHON=python3.12"; exit 2; }
	@echo "installing jixu[$(EXTRA)] into $(VENV) (once)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt --editable '.[$(EXTRA)]'
	@$(BIN)/python -W ignore -m compileall -qq -j 0 $(VENV)/lib || true
	@touch $@ $(INSTALLED)

demo: $(INSTALLED)
	@$(BIN)/jixu end-to-end --demo

test: $(WITH_TESTS)
	@$(BIN)/python -m pytest -n logical --dist loadfile --no-loadscope-reorder

serve: $(INSTALLED)
	@$(BIN)/jixu serve

lint: $(WITH_TESTS)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

bench: export JIXU_BENCHMARK_RESULTS := build/benchmarks
bench: $(WITH_TESTS)
	@$(BIN)/python -m benchmarks.data_prep --characters 400000
	@$(BIN)/python -m benchmarks.train_step --only tiny --rounds 1 --sequences 8
	@$(BIN)/python -m benchmarks.fine_tune_step --seeds 0
	@$(BIN)/python -m benchmarks.compile_only --fast --only layer_norm
	@$(BIN)/python -m benchmarks.gpu check-and-tune --device cpu --tiny --out build/benchmarks

# for the Python of that machine: make carried GPU_PYTHON=3.13
GPU_PYTHON ?= 3.12
FETCH = $(BIN)/python -m pip install --quiet --no-compile --upgrade --target build/carried --only-binary=:all:
carried: $(INSTALLED)
	@$(FETCH) --python-version $(GPU_PYTHON) --platform manylinux_2_17_x86_64 pydantic
	@$(FETCH) --no-deps liger-kernel

clean:
	rm -rf $(VENV) build *.egg-info
