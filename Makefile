# `make help` lists the targets. Two commands do everything on a fresh machine: `make demo` and `make test`.

.DEFAULT_GOAL := help
SHELL := /bin/sh
PY := .venv/bin/python
HOURS ?= 1
PYTEST_ARGS ?=
# Test processes side by side, a file each. Tests of real processes wait much: two processes use 61 % of two processors, so a third
# one is used where there is memory for it (3 GB each).
PROCESSES ?= $(shell awk '/^MemTotal:/ { n = $$2 } END { print (n >= 12000000 ? 3 : 2) }' /proc/meminfo 2>/dev/null || echo 2)
BENCH_ARGS ?=

# Tests patch production code, which compiled modules do not notice: they run in pure Python. `make compiled` is for the other form.
test clients peers worlds soak sim check: export MAGNETAR_COMPILE = no

# What was compiled once is not compiled again by every process (containers often forbid it).
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup pure demo cluster test compiled clients peers check bench sim worlds soak wheel docs proto lock clean

help: ## Show the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "  make %-8s %s\n", $$1, $$2 }'

setup: ## Install everything into .venv, and a Java runtime when there is none; compile the hot modules (MAGNETAR_COMPILE=no: do not)
	@tools/bootstrap.sh

pure:
	@tools/bootstrap.sh --pure

demo: pure ## The main job: real flights through three clusters (a slice, about a minute)
	@$(PY) -m examples.demo --fast

cluster: pure ## Two brokers on a real BookKeeper (fetched by Maven), real flights, kills of brokers, a bookie and Spark (about two minutes)
	@$(PY) -m examples.cluster --fast

test: pure ## All tests, in pure Python, fast ones first; PYTEST_ARGS="tests/unit" for some, PROCESSES=1 for one after the other
	@$(PY) -m pytest -q -n $(PROCESSES) --dist loadfile --no-loadscope-reorder --durations=30 --durations-min=5 $(PYTEST_ARGS)

compiled: setup ## The fast tests in compiled form, PYTEST_ARGS=tests for all; what patches compiled modules runs in pure Python alone
	@$(PY) tools/compile_modules.py --check; case $$? in \
	0) $(PY) -m pytest -q -n $(PROCESSES) --dist loadfile --no-loadscope-reorder $(or $(PYTEST_ARGS),@tests/compiled.txt) ;; \
	3) echo "compiled: not tested, because nothing can be compiled here" ;; \
	*) exit 1 ;; esac

clients: pure ## Official clients of other languages (Go, Java, Node.js) and Pulsar's own tools: built and tried; skips what cannot be built here
	@MAGNETAR_CLIENTS=1 $(PY) -m pytest -q tests/clients/others $(PYTEST_ARGS)

peers: pure ## Tests next to a real Apache Pulsar and Apache BookKeeper, fetched from Maven Central once; skips where there is no Java or Maven
	@MAGNETAR_PEERS=1 $(PY) -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder --durations=30 --durations-min=5 tests/peers $(PYTEST_ARGS)

check: pure ## Lint, format, types, import rule, generated files
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -m pytest -q tests/unit/test_imports.py
	$(PY) tools/generate_proto.py --check
	$(PY) tools/generate_reference.py --check
	$(PY) tools/generate_rest_reference.py --check
	$(PY) tools/generate_policies.py --check
	$(PY) tools/generate_metrics.py --check
	$(PY) tools/generate_comparison.py --check

bench: setup ## The benchmark suite; figures are kept in bench/results
	@$(PY) -m magnetar bench $(BENCH_ARGS)

# Of whole brokers as many as are promised; of single machines fewer, since `worlds` makes so many of each of its kinds.
sim: SEEDS ?= 100000
worlds: SEEDS ?= 20000

sim: FROM ?= 0
sim: pure ## Random worlds around whole brokers on all cores: SEEDS=100000 of each mode, a tenth as many wide ones and takeovers with links
	@for mode in exact snapshot mixed metadata bookkeeper takeover; do \
		$(PY) -m magnetar_sim --from $(FROM) --seeds $(SEEDS) --mode $$mode || exit 1; done
	@for kind in --wide --takeover; do for mode in exact snapshot mixed; do \
		$(PY) -m magnetar_sim --from $(FROM) --seeds $$(( ($(SEEDS) + 9) / 10 )) --mode $$mode $$kind || exit 1; done; done

worlds: pure ## Random worlds around single machines (links, storage, acknowledged sets, snapshots, ...): SEEDS=20000 of each
	@MAGNETAR_SEEDS=$(SEEDS) $(PY) -m pytest -q --timeout=0 tests/property

soak: pure ## Faults and kills again and again for HOURS=1; stops at the first failure; CLUSTER=bookkeeper: two brokers on a real BookKeeper
	$(if $(filter-out bookkeeper,$(CLUSTER)),$(error CLUSTER=$(CLUSTER): it should be bookkeeper, or left out))
	@$(PY) tools/soak.py --hours $(HOURS) $(if $(CLUSTER),--only cluster)

wheel: pure ## The wheel, into dist/; COMPILED=yes: with the compiled modules, for this machine's kind and this Python
	@MAGNETAR_WHEEL=$(if $(filter yes,$(COMPILED)),compiled,pure) $(PY) -m hatchling build -t wheel -d dist

docs: pure ## Write the generated pages again
	$(PY) tools/generate_reference.py
	$(PY) tools/generate_rest_reference.py
	$(PY) tools/generate_policies.py
	$(PY) tools/generate_metrics.py
	$(PY) tools/generate_comparison.py

proto: pure ## Generate the protobuf modules from the .proto files
	$(PY) tools/generate_proto.py

lock: pure ## Resolve the dependencies again into requirements.lock
	@tools/lock.sh

clean: ## Remove the virtual environment, compiled modules, caches and demo data
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist spark-warehouse artifacts metastore_db
	find src simulator examples tests bench tools -name __pycache__ -type d -prune -exec rm -rf {} +
