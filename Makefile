# Every target sets up what it needs. Nothing is installed outside $(VENV).
PYTHON ?= python3
VENV ?= .venv
ARGS ?=

BIN = $(VENV)/bin
READY = $(VENV)/.ready
ON_SQLITE = MLANGO_TEST_DATABASE=sqlite
ON_POSTGRES = MLANGO_TEST_DATABASE=postgres

BENCHMARKS = loop traced journal direct stream through_litellm sse idle cold

.PHONY: help setup demo test test-postgres coverage bench check format lock clean

help:
	@echo "make demo    run an agent, offline"
	@echo "make test    run the tests on SQLite; ARGS='-k name' is passed on to pytest"
	@echo "make check   formatting, lint, types, import contracts, spelling"
	@echo "make bench   CPU time beside a floor, as ratios"
	@echo "make lock    pin the newest allowed versions anew"
	@echo "make clean   remove everything that was built"

setup: $(READY)

$(READY): pyproject.toml $(wildcard constraints/*.txt) tools/setup.sh
	@sh tools/setup.sh "$(PYTHON)" "$(VENV)"
	@touch $@

demo: $(READY)
	@$(BIN)/python manage.py migrate --verbosity 0
	@$(BIN)/python manage.py agent support.Support "Where is order 1002?"

test: $(READY)
	@$(ON_SQLITE) $(BIN)/python -m pytest -q -n auto $(ARGS)

test-postgres: $(READY)
	@$(ON_POSTGRES) $(BIN)/python -m pytest -q -n auto $(ARGS)

coverage: $(READY)
	@$(BIN)/coverage erase
	@$(ON_SQLITE) $(BIN)/coverage run -m pytest -q -n auto $(ARGS)
	@$(BIN)/coverage combine -q
	@$(BIN)/coverage report

bench: $(READY)
	@for name in $(BENCHMARKS); do $(ON_SQLITE) $(BIN)/python -W ignore benchmarks/$$name.py || exit 1; done

check: $(READY)
	$(BIN)/ruff format --check --output-format concise
	$(BIN)/ruff check --output-format concise
	$(BIN)/python -m mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/codespell

format: $(READY)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

lock: $(READY)
	@sh tools/lock.sh "$(BIN)/uv"

clean:
	rm -rf .venv .venv-* .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	rm -rf .hypothesis .coverage .coverage.* htmlcov build dist *.sqlite3 *.sqlite3-*
	find mlango tests project_template -name __pycache__ -prune -exec rm -rf {} +
