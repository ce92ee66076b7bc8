# Every target makes the .venv that it needs.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

MINUTES ?= 10
MODULES ?= *
SAMPLE ?= 60

.PHONY: demo test test-all test-web test-install test-trace coverage dist screenshots fmt docs pages docs-site page imports bench bench-page bench-peers dialects fuzz mutants clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/python -m compileall -q src
	touch $(READY)

# What a user needs and no more, in an environment of its own: a run that fits, and one that does not.
DEMO := build/demo/bin

demo:
	test -x $(DEMO)/python || $(PYTHON) -m venv build/demo
	$(DEMO)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt .
	$(DEMO)/megatron-memory estimate Llama-3.1-70B --num-gpus 64 --tp 4 --pp 4
	@echo
	$(DEMO)/megatron-memory estimate DeepSeek-V3 --num-gpus 128 --tp 4 --pp 4 --ep 8

test: $(READY)
	$(BIN)/ruff check src tests scripts skills
	$(BIN)/ruff format --check src tests scripts skills
	$(BIN)/mypy
	$(BIN)/python -m pytest -n auto

test-all: test
	SWEEP=1 MANY_JOBS=3000 MANY_SCRIPTS=20000 $(BIN)/python -m pytest -n auto -rP

# What tests in a browser need: Chromium, from Debian's packages where there is none.
BROWSER := build/.browser

$(BROWSER): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,webtest]'
	test -x /usr/bin/chromium || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } > /dev/null
	mkdir -p build && touch $(BROWSER)

test-web: $(BROWSER)
	$(BIN)/python -m pytest -rP tests/web

# Pictures of every view, to be looked at; those of the README with FOLDER=docs/images WORD=page-
FOLDER ?= build/screenshots
WORD ?=

screenshots: $(BROWSER)
	$(BIN)/python scripts/screenshots.py $(FOLDER) $(WORD)

# Lines that the tests reach, of this process alone: what commands and workers do in processes of their own is not counted.
coverage: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt pytest-cov
	$(BIN)/python -m pytest -n auto --cov=megatron_memory_estimator --cov-report=term:skip-covered --cov-fail-under=95

# The package as a stranger installs it: every Python that is here, each extra, the sdist, pipx and uv.
test-install: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt build
	$(BIN)/python -m pytest -rPs tests/install

dist: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt build
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m build --quiet

# CPU torch takes gigabytes, so that it has an environment of its own.
test-trace:
	test -x build/trace/bin/python || $(PYTHON) -m venv build/trace
	build/trace/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[trace]'
	build/trace/bin/python -m pytest -rP tests/trace

fmt: $(READY)
	$(BIN)/ruff check --fix src tests scripts skills
	$(BIN)/ruff format src tests scripts skills

# Every generated part of the pages, and the site made of them in build/docs.
docs: pages docs-site

pages: $(READY)
	$(BIN)/python scripts/generate_docs.py

docs-site: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,docs]'
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet docs build/docs
	@echo "build/docs/index.html"

# The page from its sources in web/; who installs the package needs none of this.
page:
	cd web && npm ci --ignore-scripts --silent && npm run --silent build

imports: $(READY)
	$(BIN)/python scripts/imports.py $(CHECKOUT)

bench: $(READY)
	$(BIN)/python -m compileall -q src
	$(BIN)/python scripts/bench.py $(AGAINST)

# Beside other estimators, each in an environment of its own: PEERS=all has those with torch too (gigabytes).
PEERS ?=

bench-peers: $(READY)
	$(BIN)/python scripts/bench_peers.py $(PEERS)

bench-page: $(BROWSER)
	$(BIN)/python scripts/bench_page.py

fuzz: $(READY)
	$(BIN)/python scripts/fuzz.py --minutes $(MINUTES)

# Keys of a framework's tree (TREE) that its reader does not know.
TREE ?=

dialects: $(READY)
	$(BIN)/python scripts/dialect_age.py $(TREE)

# Which tests notice an error in a line: MODULES, or so many (DRAW) of a ROOM.
ROOM ?=
DRAW ?= 300

mutants: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,mutation]'
	test -f build/mutants_map.json || $(BIN)/python scripts/mutants.py --map
	$(BIN)/python scripts/mutants.py --sample $(SAMPLE) $(foreach room,$(ROOM),--room $(room) --draw $(DRAW)) $(foreach module,$(MODULES),--modules '$(module)')

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache
