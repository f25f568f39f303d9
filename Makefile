# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.complete
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: setup demo test fuzz lint format bench docs clean

setup: $(STAMP)

# Exact versions from constraints.txt, build tools included. Compiled once: where bytecode is not written on import,
# every start would otherwise compile anew.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --editable '.[dev]' -c constraints.txt
	$(BIN)/python -m compileall -q $(VENV)/lib src || true
	touch $@

demo: setup
	@mkdir -p demo
	$(BIN)/posbias simulate demo/clicks.parquet --queries 20000
	$(BIN)/posbias estimate demo/clicks.parquet --truth demo/clicks.truth.json --plot demo/curve.png
	@echo "The picture of this curve is in demo/curve.png."

test: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal

# Every byte of a harvest and of an export flipped, every length cut: minutes, where `make test` takes every so many.
fuzz: setup
	POSBIAS_FUZZ_STEP=1 $(BIN)/python -m pytest -q tests/test_harvest_files.py tests/test_export_files.py tests/test_checksums.py

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Ratios of one run, written to benchmarks/RESULTS.md. `make bench ROWS=1` is a quick look: millions of rows.
bench: setup
	$(BIN)/python -m benchmarks $(if $(ROWS),--millions $(ROWS))

# The documentation is Markdown; this checks that it is current: help texts, examples and links.
docs: setup
	$(BIN)/python -m pytest -q tests/test_docs.py

clean:
	rm -rf $(VENV) .venv-peer demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
