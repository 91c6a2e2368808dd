# Each target installs what it needs: a machine with git, make and Python 3.11 is enough for `make demo` and `make test`.
.DEFAULT_GOAL := help
.PHONY: help lock audit sbom docs demo test test-api test-slow test-long test-boot test-kubernetes test-cloud test-all check bench bench-exec bench-markets bench-scale sim failures fuzz fuse net ssh haproxy boot kubernetes postgres azurite prometheus containers frameworks ray chromium dashboard clean

# The first Python on this machine that is new enough and can make virtual environments.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	  $$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
# Two sets of packages: what tests and checks need, and the small part of it that the demo needs.
INSTALLED := $(VENV)/.installed
INSTALLED_DEMO := $(VENV)/.installed-demo
# The number of pytest-xdist workers: twice the cores of a small machine, because many tests wait for processes.
WORKERS ?= 4
# The tests of a file stay on one worker, where they share expensive fixtures, until another worker is idle.
PYTEST = $(BIN)/pytest -n $(WORKERS) --dist worksteal

# Python keeps what it has compiled, whatever this shell says: tests start hundreds of them.
export PYTHONDONTWRITEBYTECODE :=

PACKAGES := recovery checkpoint agent sdk cli controller
SHELL_FILES = $(shell git ls-files --cached --others --exclude-standard '*.sh' .ci/run 'checkpoint/*/sky_templates/*')

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

demo: $(INSTALLED_DEMO) fuse ## a training job, preempted twice, finishes with nothing lost (about a minute, after a minute of installing)
	@$(BIN)/python -m examples.demo

test: $(INSTALLED) fuse net ssh haproxy postgres azurite prometheus chromium ## the tests that every change must pass (about 9 minutes on 2 cores)
	$(PYTEST) -p no:schemathesis -m "not slow and not long and not api and not kubernetes"

test-api: $(INSTALLED) fuse ssh haproxy ## the HTTP API under invalid and hostile input, secrets, a minute of fuzzing
	$(PYTEST) -m "api and not long"

test-slow: $(INSTALLED) fuse net ssh haproxy postgres azurite containers chromium ## whole examples on the local cloud, and the demo
	$(PYTEST) -m slow

test-boot: $(INSTALLED) fuse boot ## a real distribution boots with each cloud's user data, and is powered off (about 4 minutes)
	$(BIN)/pytest -n 0 -m boot

test-kubernetes: $(INSTALLED) kubernetes ## real servers of Kubernetes 1.20, which are built the first time (a quarter of an hour), and the tests against them
	$(BIN)/pytest -n 0 -m kubernetes tests/conformance

test-long: $(INSTALLED) fuse net ssh haproxy boot postgres azurite frameworks ray ## kills at every point, thousands of histories, storms; PART=2/8 runs an eighth
	$(PYTEST) -m long $(if $(PART),--part $(PART))

test-cloud: $(INSTALLED) ## one job on a real account, for money, up to a cap: PERDURE_REAL_CLOUD=aws|gcp|azure; see tests/cloud
	@test -n "$$PERDURE_REAL_CLOUD" || { echo "this buys machines: set PERDURE_REAL_CLOUD to aws, gcp or azure, and see tests/cloud/test_real_clouds.py" >&2; exit 1; }
	$(BIN)/pytest -n 0 -s tests/cloud

test-all: $(INSTALLED) fuse net ssh haproxy boot postgres azurite containers frameworks ray prometheus chromium ## every test
	$(PYTEST)

check: $(INSTALLED) ## lint, format, types, import rules, shell
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(addprefix -p perdure.,$(PACKAGES))
	$(BIN)/lint-imports
	$(BIN)/shellcheck $(SHELL_FILES)

docs: $(VENV)/.docs ## the documentation in English and Chinese, in build/site
	@$(BIN)/python -m scripts.docs

dashboard: chromium ## check and build the dashboard from its sources into the controller's package; needs Node.js
	@npm run --prefix dashboard --silent check
	@npm run --prefix dashboard --silent build

lock: ## pin every package of a controller, with hashes, after pyproject.toml has changed; UPGRADE=1 takes the newest
	@scripts/lock.sh

audit: $(INSTALLED) ## no locked package is withdrawn, has another hash, or is known to be vulnerable
	@$(BIN)/python -m scripts.supply_chain audit

sbom: $(INSTALLED) ## the bill of materials of a controller (CycloneDX), in build/sbom.cdx.json
	@$(BIN)/python -m scripts.supply_chain sbom

wheels: $(INSTALLED) ## the wheels `perdure` and `perdure-checkpoint` (the library alone, for training images), in dist
	@$(BIN)/pip wheel -q --disable-pip-version-check --no-deps --wheel-dir dist . ./checkpoint
	@ls dist/*.whl

bench: $(INSTALLED) fuse ## how fast things are, and what policies cost, against their targets
	@$(BIN)/python -m benchmarks.latency
	@$(BIN)/python -m benchmarks.policies
	@$(BIN)/python -m benchmarks.services

bench-exec: $(INSTALLED) ## how long `perdure exec` takes to its first output, on a cluster of the local cloud
	@$(BIN)/python -m benchmarks.cluster_exec

bench-markets: $(INSTALLED) ## what DEADLINE costs on other markets, and whether it is ever late there; not all targets are met
	@$(BIN)/python -m benchmarks.policies --foreign

bench-scale: $(INSTALLED) ## one controller with ten thousand running jobs, then among a million past ones (about 20 minutes)
	@$(BIN)/python -m benchmarks.scale
	@$(BIN)/python -m benchmarks.scale --growth
	@$(BIN)/python -m benchmarks.scale.queue
	@$(BIN)/python -m benchmarks.scale.clusters
	@$(BIN)/python -m benchmarks.scale.drought

fuzz: $(INSTALLED) ## coverage-guided fuzzing of the YAML reader until Ctrl-C; findings are kept in build/fuzz
	@mkdir -p build/fuzz/corpus
	$(BIN)/python tests/fuzz/yaml_reader.py -max_len=4096 -timeout=20 -rss_limit_mb=2048 -artifact_prefix=build/fuzz/ \
	  -dict=tests/fuzz/yaml.dict build/fuzz/corpus tests/fuzz/corpus

failures: $(INSTALLED) fuse ## kill a controller while a job runs: the job and its log lose nothing (about half a minute)
	@scripts/failures.sh

sim: $(INSTALLED) ## simulate histories of the controller with faults until Ctrl-C; SEED=… prints one
	@PYTHONPATH=tests/sim $(BIN)/python -m faultworld $(if $(CLUSTERS),--clusters) $(if $(SEED),--seed $(SEED)) $(if $(COUNT),--count $(COUNT))

fuse:
	@scripts/ensure-fuse.sh

net:
	@scripts/ensure-net.sh

ssh:
	@scripts/ensure-ssh.sh

haproxy:
	@scripts/ensure-haproxy.sh

boot:
	@scripts/ensure-boot.sh

kubernetes:
	@scripts/ensure-kubernetes.sh

containers:
	@scripts/ensure-containers.sh

postgres:
	@scripts/ensure-postgres.sh

prometheus:
	@scripts/ensure-prometheus.sh

azurite: $(INSTALLED)
	@scripts/ensure-azurite.sh $(VENV)

chromium: | $(BIN)/python
	@scripts/ensure-chromium.sh $(VENV)

frameworks: $(INSTALLED)
	@scripts/ensure-frameworks.sh $(BIN)

ray: | $(BIN)/python
	@scripts/ensure-ray.sh $(BIN)/python

$(VENV)/.docs: $(INSTALLED)
	@$(BIN)/pip install -qq --disable-pip-version-check -e '.[dev,docs]'
	@touch $@

clean: ## remove all that this Makefile made
	rm -rf $(VENV) build dist dashboard/node_modules .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Made again whenever pyproject.toml changes. pip's own settings (index, links, certificates) are left alone.
$(INSTALLED): pyproject.toml | $(BIN)/python
	@echo "installing what tests and checks need into $(VENV), over 1 GB, which takes some minutes the first time ..."
	@scripts/install.sh $(BIN) dev
	@touch $(INSTALLED_DEMO) $@

# Byte code of modules that the demo never imports would be a fifth of its packages.
$(INSTALLED_DEMO): pyproject.toml | $(BIN)/python
	@echo "installing what the demo needs into $(VENV), 250 MB ..."
	@scripts/install.sh $(BIN) demo --no-compile
	@touch $@

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "perdure needs Python 3.11 or newer with its venv module: install one, or name it with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)
