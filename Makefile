# Every target sets up what it needs: a virtual environment with the pinned packages of constraints.txt.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-oldest-spark soak peers static check format bench fuzz screenshots docs coverage hooks lock clean

demo: $(READY)  ## run the whole system once
	$(BIN)/holtmq demo

test: $(READY)  ## run all tests
	$(BIN)/pytest --numprocesses 2 --dist worksteal

# PySpark 4.0 leaves sockets open, which the tests would report as errors.
OLDEST := $(VENV)-oldest-spark
test-oldest-spark: $(OLDEST)/.ready  ## run the tests of routing on the oldest Spark that is supported
	PYTHONPATH=src $(OLDEST)/bin/python -m pytest -W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning \
		tests/spark/test_route.py tests/spark/test_sql_functions.py tests/spark/test_conformance.py tests/spark/test_versions.py

HOURS ?= 1
soak: $(READY)  ## run faults against the broker and the embedded queue for HOURS, or with one SEED only
	$(BIN)/python -m tests.faults --hours $(HOURS) $(if $(SEED),--seed $(SEED))

peers:  ## install the programs that some tests need: RabbitMQ, PostgreSQL, amqp-tools, npm, Bunny, Chromium, gcc
	$(PYTHON) -m tests.peers

static: $(READY)  ## format, lint, types, layers
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

check: static test  ## everything that must hold before a commit

format: $(READY)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench: $(READY)  ## measure against peers; numbers and plots go to benchmarks/
	$(BIN)/python -m benchmarks.routing
	$(BIN)/python -m benchmarks.embedded
	$(BIN)/python -m benchmarks.embedded --durability full
	$(BIN)/python -m benchmarks.broker
	$(BIN)/python -m benchmarks.commits
	$(BIN)/python -m benchmarks.streams
	$(BIN)/python -m benchmarks.tuning
	$(BIN)/python -m benchmarks.management
	$(BIN)/python -m benchmarks.stalls
	$(BIN)/python -m benchmarks.pipeline
	$(BIN)/python -m benchmarks.pipeline_stream

TIME ?= 120
fuzz: $(READY)  ## fuzz every parser with atheris, for TIME seconds each (x86-64 Linux); findings go to .fuzz/
	$(BIN)/python -m tests.fuzz --seconds $(TIME)

screenshots: $(READY)  ## the pictures in docs/images, made by the tests of the pages
	HOLTMQ_SCREENSHOTS=docs/images $(BIN)/pytest -q tests/management/test_pages.py -k "screenshots or phone"

docs: $(READY)  ## build the documentation site into site/; a broken link or reference is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "The documentation is in site/index.html."

# Tracing makes a broker under load several times slower, so coverage leaves out the tests that put one under load or
# compare times, those that start Spark or a browser, and those that only repeat a comparison with RabbitMQ.
UNCOVERED := tests/spark tests/clients tests/server tests/test_readme.py tests/cli/test_pipeline.py \
	tests/conformance/test_random.py tests/embedded/test_processes.py tests/peers \
	tests/management/test_against_rabbitmq.py tests/management/test_pages.py tests/faults

coverage: $(READY)  ## measure the line coverage of src/holtmq without spark; the last line is the figure
	rm -rf .coverage && mkdir .coverage
	HOLTMQ_REQUIRE_PEERS= HOLTMQ_HIDE_PEERS=1 $(BIN)/coverage run -m pytest --quiet --numprocesses 2 --dist worksteal \
		-m "not rabbitmq" $(UNCOVERED:%=--ignore=%)
	find .coverage -size 0 -delete  # left by processes that a test killed
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --skip-covered --sort=cover > .coverage/report.txt
	@echo "Line coverage of src/holtmq without spark: $$($(BIN)/coverage report --format=total) % (files: .coverage/report.txt)"

hooks: $(READY)  ## run the static checks before each git commit
	$(BIN)/pre-commit install

UPGRADE ?= --upgrade
lock:  ## choose the newest versions that fit pyproject.toml; with UPGRADE= only add what is missing; needs uv
	uv pip compile pyproject.toml --group dev --extra delta --extra management --extra postgres --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-header --no-annotate $(UPGRADE) --output-file constraints.txt
	uv pip compile pyproject.toml --group oldest-spark --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-header --no-annotate $(UPGRADE) --output-file constraints-oldest-spark.txt

clean:
	rm -rf $(VENV) $(OLDEST) .coverage .fuzz site .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

$(READY): constraints.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "HoltMQ needs Python 3.11 or later, this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --requirement constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

$(OLDEST)/.ready: constraints-oldest-spark.txt | $(READY)
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/pip install --quiet --disable-pip-version-check --require-hashes --requirement constraints-oldest-spark.txt
	$(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir $(OLDEST) .
	$(OLDEST)/bin/pip install --quiet --disable-pip-version-check --no-deps $(OLDEST)/holtmq-*.whl  # a broker needs its version
	touch $@
