# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
FULL   := $(VENV)/.complete
TEST   := $(VENV)/.test
# The npm packages that drive Chromium in tests.
NODE   := .browser
DEMO   := $(VENV)/.demo
SHOWN  := plot,report
SITE   := $(VENV)/.site
# Two processes, each with one thread for its matrices: more would wait for each other.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal
export PIP_DISABLE_PIP_VERSION_CHECK = 1

# Where tests do not compare printed pages, whose digits may differ between versions of other packages.
PLAIN  := $(addprefix tests/,cli curves engines estimators harvesting judging learning logs planning plots reporting simulation sql)

.PHONY: setup demo test test-servers test-oldest test-newest dist fuzz experiments lint format bench docs site clean

# Exact versions from constraints.txt, build tools included. Compiled once, on all cores and without the tests of others:
# where Python cannot write bytecode on import, every start would compile again.
define install
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --no-compile --editable '.[$(1)]' -c constraints.txt
	$(BIN)/python -m compileall -q -j 0 -x '/(tests|fontTools/(?!misc/)[^/]+|pip)/' $(VENV)/lib src || true
endef

setup: $(FULL)

$(FULL): pyproject.toml constraints.txt
	$(call install,dev)
	touch $(DEMO) $(TEST) $@

# The same .venv with a part of it; `make setup` adds the rest.
$(TEST): pyproject.toml constraints.txt
	$(call install,test)
	touch $(DEMO) $@

$(DEMO): pyproject.toml constraints.txt
	$(call install,$(SHOWN))
	touch $@

# The site generator is large and rarely needed, so it is installed only here.
$(SITE): pyproject.toml constraints.txt
	$(call install,docs)
	touch $@

# Printed at the end of the demo.
define NEXT

The curve is drawn in demo/curve.png. Open demo/report.html in a browser for the full report.
Next, with your own log:
  $(BIN)/posbias check LOG                   list the problems of the log, with remedies
  $(BIN)/posbias estimate LOG                estimate its curve; --by COLUMN gives one for each segment
  $(BIN)/posbias report LOG -o report.html   write the curve and its evidence as a page to send
  $(BIN)/posbias plan LOG                    find out how much more data the curve needs
docs/log.md explains the columns. docs/questions.md answers frequent questions.
endef
export NEXT

demo: $(DEMO)
	@mkdir -p demo
	$(BIN)/posbias simulate demo/clicks.parquet --queries 10000
	$(BIN)/posbias estimate demo/clicks.parquet --truth demo/clicks.truth.json --plot demo/curve.png
	$(BIN)/posbias report demo/clicks.parquet -o demo/report.html
	@echo "$$NEXT"

# Every test is in one of the two: `test` needs nothing but Python, `test-servers` Java, PostgreSQL, Chromium and node too.
test: $(TEST)
	$(PYTEST) -m "not (server or long)"

# Build sdist and wheel into build/dist, and run the README's first minute with the wheel: without extras, then with each.
# `make dist EXTRAS="--python python3.13 none plot"` chooses a Python and the extras.
dist: $(TEST)
	$(BIN)/python -m tests.dist $(EXTRAS)

# The tests with the oldest versions of other packages that pyproject.toml allows, and with the newest that pip finds.
# Warnings of other versions are not errors. `make test-oldest TESTS=tests/curves` runs a part; PYTHON chooses the Python.
define test_versions
	test -x .venv-$(1)/bin/python || $(PYTHON) -m venv .venv-$(1)
	.venv-$(1)/bin/python -m pip install --quiet --no-compile --upgrade --editable '.[test]' $(2)
	OMP_NUM_THREADS=1 .venv-$(1)/bin/python -m pytest -q -n 2 --dist worksteal --disable-warnings -m "not (server or long)" -o filterwarnings= $(or $(TESTS),$(PLAIN))
endef

test-oldest:
	$(call test_versions,oldest,-c constraints-oldest.txt)

test-newest:
	$(call test_versions,newest)

test-servers: setup $(NODE)/.complete
	$(PYTEST) -m "server or long"

$(NODE)/.complete: tests/support/browser/package.json
	mkdir -p $(NODE)
	cp $< $(NODE)
	npm install --prefix $(NODE) --no-package-lock --no-audit --no-fund --loglevel=error
	touch $@

# Every byte of a harvest and of an export flipped, every length cut: minutes, where `make test` takes every so many. Then
# random logs against the oracle until it is interrupted, or so long: `make fuzz SECONDS=600`.
fuzz: setup
	POSBIAS_FUZZ_STEP=1 $(BIN)/python -m pytest -q tests/harvesting/test_files.py tests/harvesting/test_damaged_exports.py tests/engines/test_checksums.py
	POSBIAS_STRESS=20 $(BIN)/python -m pytest -q tests/test_under_stress.py
	POSBIAS_FUZZ_SECONDS=$(or $(SECONDS),inf) $(BIN)/python -m pytest -q tests/harvesting/test_fuzz.py -k agree_with_the_oracle

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

# The paper's experiments, into build/experiments; `make experiments NAME=a QUICK=1` runs one of them, quickly.
experiments: setup
	$(BIN)/python -m experiments $(or $(NAME),all) $(if $(QUICK),--quick)

# The documentation is Markdown; this checks that it is current (help texts, examples, notebooks, links) and builds the site.
docs: setup site
	$(BIN)/python -m pytest -q tests/docs/test_docs.py tests/docs/test_notebooks.py tests/docs/test_website.py

# The pages, the notebooks and a reference from docstrings as a searchable site: build/site. A broken link is an error.
site: $(SITE)
	$(BIN)/python -m website

clean:
	rm -rf $(VENV) $(NODE) .venv-* build demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
