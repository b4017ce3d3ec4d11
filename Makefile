# What a person or a machine runs. Each target sets up what it needs: Python 3.11-3.13 and Java 17+ suffice.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help audit run check test test-all bench docs docs-site wheel screenshots sim proof mutants soak experiment lock clean java postgres pgbouncer redis strace chromium promtool npm weed

PYTHON ?=
IN_VENV := .venv/bin/python
READY := .venv/.ready
# To run something, its packages suffice; who has those for the tests keeps them.
INSTALLED := $(if $(wildcard $(READY)),$(READY),.venv/.installed)
OTHER_PYTHON := .venv/newest/.ready
MERMAID := .venv/mermaid/mermaid.min.js
# One selection for `make check` and `make test`: of what is marked as sampled each n-th case, of what is marked as long none.
# `make check` leaves out what needs a server, too; `make test-all` runs what the sample leaves out.
PYTEST := $(IN_VENV) -m pytest --quiet --no-skips -p tests.processes
SAMPLE := --sample --hypothesis-profile=check
STYLE := '$(IN_VENV) -m mypy' '$(IN_VENV) -m ruff check --quiet .' '$(IN_VENV) -m ruff format --check --quiet .'

help: ## Say what there is
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | while IFS="$$(printf '\t')" read -r target what; do \
		printf '  make %-11s %s\n' "$$target" "$$what"; done

run: java $(INSTALLED) ## Run the global count example on a local Spark (needs Java)
	@$(IN_VENV) -m examples.transactional_global_count

# Compiled once, whatever a machine says: each of some hundred processes would compile all of it anew.
check test test-all proof: export PYTHONDONTWRITEBYTECODE :=

check: export LIMITS := 60 s, the processors 110 s
check: $(READY) ## Did I break something? Style, types and a sample of the tests that need no server, in a minute
	@tools/at_once.sh '$(PYTEST) $(SAMPLE) --without-servers $(if $(WRITE_COSTS),--write-costs) tests' $(STYLE)

test: export TMPDIR ?= /tmp
test: export LIMITS := 600 s, the processors 750 s
test: tested ## Does it work here? check, and each mechanism once with Spark, Delta, Kafka, PostgreSQL, Redis ..., in ten minutes (needs Java)
	@tools/at_once.sh '$(PYTEST) $(SAMPLE) $(if $(WRITE_COSTS),--write-costs,--hold-costs) tests' $(STYLE)

test-all: export TMPDIR ?= /tmp
test-all: tested ## Everything that is no matter of chance, 40 minutes; SLICE=3/8: an eighth of what test leaves out; SLICE=auto: another one every three hours
	@$(if $(SLICE),,$(MAKE) --no-print-directory check test WRITE_COSTS=1)
	@tools/at_once.sh '$(PYTEST) $(if $(SLICE),--slice $(SLICE),--slice 1/1 --write-costs) tests'

# What the tests with servers need on this machine.
.PHONY: tested
tested: java postgres pgbouncer redis strace chromium promtool $(READY) $(OTHER_PYTHON) $(MERMAID)

bench: java $(READY) ## Measure all of docs/performance.md in 25 minutes (needs Java); ARGS="--short" takes a few
	@$(IN_VENV) -m bench $(ARGS)

docs: $(READY) ## Write the generated pages of docs/ anew
	@$(IN_VENV) tools/make_reference.py

docs-site: $(READY) $(MERMAID) ## Build the docs as a site in build/site, and serve it on this machine
	@$(IN_VENV) tools/docs_site.py

screenshots: chromium $(READY) ## Take the console's pictures in docs/pictures anew, of a real run with failures and a takeover
	@$(IN_VENV) tools/console_pictures.py

sim: $(READY) ## Run the simulation: SEED=first SEEDS=how many
	@$(IN_VENV) -m tests.simulation --seed $(or $(SEED),0) --seeds $(or $(SEEDS),1000)
	@$(IN_VENV) -m tests.windows --seed $(or $(SEED),0) --seeds $(or $(SEEDS),1000)

proof: java postgres redis strace weed $(READY) ## Prove the promises at length: the parts that are stalest, as many as fit into BUDGET=40m; docs/proof.md says how far; SEED=n
	@$(IN_VENV) -m tests.proof --budget $(or $(BUDGET),40m) $(if $(SEED),--seed $(SEED)) $(ARGS)

mutants: export PYTHONDONTWRITEBYTECODE :=
mutants: $(if $(filter test all,$(TIER)),java postgres pgbouncer redis strace chromium promtool) $(READY) ## Plant wrong variants of the code one at a time, and report which survive TIER=check, test or all: BUDGET=40m; goes on where it ended
	@$(IN_VENV) -m tests.mutants --tier $(or $(TIER),check) --budget $(or $(BUDGET),40m) $(ARGS)

soak: java $(READY) ## The part of proof with 450 kills over a real broker, in half an hour: SEED=n
	@$(IN_VENV) -m pytest --quiet --no-skips --proof --seed $(or $(SEED),7) tests/proof/test_soak.py

experiment: java postgres $(READY) ## Kill workers and leaders under load, ours and Structured Streaming, in 35 minutes; draw what it costs
	@$(IN_VENV) -m tests.experiment $(ARGS)

lock: ## Write requirements.lock anew from pyproject.toml; UPGRADE=1 takes the newest versions that fit
	@PYTHON="$(PYTHON)" UPGRADE="$(UPGRADE)" tools/lock.sh

wheel: $(INSTALLED) ## Build dist/transactional_topologies-*.whl, which pip installs without this clone
	@$(IN_VENV) -m hatchling build --target wheel

audit: $(READY) ## Is what is installed what is pinned, and all that is asked for pinned? Needs no network
	@$(IN_VENV) tools/audit.py

clean: ## Remove the virtual environment, caches and what runs left behind
	@rm -rf .venv build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache artifacts checkpoints derby.log metastore_db spark-warehouse
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

java:
	@tools/check_java.sh

postgres:
	@tools/ensure.sh postgres

pgbouncer:
	@tools/ensure.sh pgbouncer

redis:
	@tools/ensure.sh redis

strace:
	@tools/ensure.sh strace

chromium:
	@tools/ensure.sh chromium

promtool:
	@tools/ensure.sh promtool

npm:
	@tools/ensure.sh npm

weed: $(READY)
	@tools/ensure.sh weed

$(MERMAID): tools/mermaid.sh | $(READY) npm
	@tools/mermaid.sh $@

.venv/.installed: requirements.lock pyproject.toml
	@PYTHON="$(PYTHON)" tools/make_venv.sh run
	@touch $@

$(READY): requirements.lock pyproject.toml
	@PYTHON="$(PYTHON)" tools/make_venv.sh test
	@touch $@

# Of the Pythons that are supported the newest on this machine, for tests/integration/install/: pyenv's shims are on
# PATH also where they do not work.
of_pyenv = $(wildcard $(dir $(shell command -v pyenv))../versions/$(1).*/bin/python$(1))
$(OTHER_PYTHON): requirements.lock pyproject.toml | $(READY)
	@VENV=$(@D) PYTHON="python3.13 $(call of_pyenv,3.13) python3.12 $(call of_pyenv,3.12) $(IN_VENV)" tools/make_venv.sh test
	@touch $@
