# `make` prints what there is. Everything runs in .venv, made on first use, or in an environment of your own:
# `make figures PYTHON=python`.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:

PYTHON ?= .venv/bin/python
SCALE ?= paper
EXECUTOR ?=
export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))

EVERY_NOTEBOOK := $(wildcard notebooks/[0-9]*.ipynb)
NOTEBOOKS := $(filter-out notebooks/00_%,$(EVERY_NOTEBOOK))
LIBRARY := $(filter-out fa_lib/claims.py,$(shell find fa_lib -name '*.py' -o -name '*.yaml')) fa_lib/plots/paper.mplstyle data/published.csv
READY := $(if $(filter .venv/bin/python,$(PYTHON)),.venv/ready $(if $(filter slurm,$(EXECUTOR)),.venv/cluster))
BROWSER := $(if $(READY),.venv/browser)
SUDO := $(if $(filter-out 0,$(shell id -u)),sudo)
CHROMIUM ?= $(firstword $(shell command -v chromium chromium-browser google-chrome))
SLURM := $(shell command -v slurmctld)

help: ## print this
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

figures: $(NOTEBOOKS:notebooks/%.ipynb=build/%.done) ## draw every figure: run the notebooks that changed, through papermill (EXECUTOR=slurm: on a cluster)
	@$(PYTHON) -m fa_lib.claims --readme > /dev/null

# Stamped with the time the run began, so that an edit made meanwhile counts. A result that is gone is made again.
.SECONDEXPANSION:
build/%.done: notebooks/%.ipynb notebooks/scales/$(SCALE).yaml build/scale $(LIBRARY) \
		$$(if $$(wildcard data/results/$$*.csv),,FORCE) | $(READY)
	@touch $@.begun && $(PYTHON) -m fa_lib.execution.notebook $< --scale $(SCALE) $(if $(EXECUTOR),--executor $(EXECUTOR)) && mv $@.begun $@

build/08_weights_in_context.done: | build/07_weight_divergence.done # they share their runs
build/10_biased_rounding.done: | build/08_weights_in_context.done

build/scale: FORCE # changes when SCALE does
	@mkdir -p build && echo $(SCALE) | cmp -s - $@ || echo $(SCALE) > $@

FORCE:

record: $(READY) ## on a machine with a CUDA GPU: its kernels and figures, into data/recorded/<device>/
	for f in $(NOTEBOOKS); do $(PYTHON) -m fa_lib.execution.notebook "$$f" --scale gpu --record; done

report: $(READY) ## KERNEL=package.module:function or QKV=file.safetensors: a verdict, as one HTML page
	@$(PYTHON) -m fa_lib.check.report $(if $(KERNEL),--kernel '$(KERNEL)') $(if $(QKV),--qkv '$(QKV)') \
		$(if $(FORMAT),--format '$(FORMAT)')

example: $(READY) ## check a model: a tiny decoder under the probe, which saves the worst call for `make report`
	@$(PYTHON) examples/check_a_model.py

test: $(READY) ## run every test, the notebooks among them (nbval)
	$(PYTHON) -m pytest

test-browser: $(READY) $(BROWSER) $(if $(CHROMIUM),,/usr/bin/chromium) ## test `make lab` in a real browser, Chromium
	CHROMIUM=$(or $(CHROMIUM),/usr/bin/chromium) $(PYTHON) -m pytest -s tests/browser.py

test-cluster: $(READY) $(if $(READY),.venv/cluster) $(if $(SLURM),,/usr/sbin/slurmctld) ## test sweeps, training and notebooks on a Slurm of two nodes, started on this machine
	$(PYTHON) -m pytest tests/cluster

test-faults: $(READY) ## kill, fill and damage at random, and count what is lost; KILLS=200 writes docs/reliability.md
	$(PYTHON) tests/faults.py $(if $(KILLS),--kills $(KILLS))

lab: $(READY) ## open JupyterLab on notebooks/00_explore.ipynb: sliders for every choice, drawn live
	$(PYTHON) -m jupyterlab notebooks/00_explore.ipynb

claims: $(READY) ## print the ledger: published, ours, verdict; and renew the README's table
	@$(PYTHON) -m fa_lib.claims --readme

bench: $(READY) ## measure what is promised of speed, each as a ratio in one run
	$(PYTHON) benchmarks/bench.py

scale: $(READY) ## write docs/scale.md: what the paper's scale would take, from unit costs measured here
	$(PYTHON) benchmarks/scale.py

lint: $(READY) ## check and format the code, strip the notebooks
	$(PYTHON) -m ruff check --fix . && $(PYTHON) -m ruff format .
	for f in $(EVERY_NOTEBOOK); do $(PYTHON) -m nbstripout "$$f" --keep-count --keep-output-type stream \
		--extra-keys "metadata.papermill cell.metadata.papermill cell.metadata.execution metadata.language_info.version"; done

renew: $(READY) ## run the notebooks at their defaults and keep the text that nbval compares with
	for f in $(EVERY_NOTEBOOK); do TQDM_DISABLE=1 $(PYTHON) -m jupyter execute --inplace "$$f"; done
	@$(MAKE) --no-print-directory lint

clean: ## remove the environment and everything built; results and figures stay
	rm -rf .venv build .pytest_cache .hypothesis .ruff_cache

.venv/ready: pyproject.toml requirements.lock
	python3 -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v <= (3, 13) else f"Python {v[0]}.{v[1]}: 3.11, 3.12 or 3.13 is needed")'
	python3 -m venv .venv
	.venv/bin/python -m pip install --quiet --constraint requirements.lock --editable '.[test]'
	@touch $@

.venv/browser: .venv/ready
	.venv/bin/python -m pip install --quiet --constraint requirements.lock --editable '.[test,browser]'
	@touch $@

/usr/bin/chromium:
	@command -v apt-get > /dev/null || { echo "no Chromium: install one, or say where it is: make test-browser CHROMIUM=path"; exit 1; }
	$(SUDO) apt-get update --quiet && $(SUDO) apt-get install --quiet --yes --no-install-recommends chromium

/usr/sbin/slurmctld:
	@command -v apt-get > /dev/null || { echo "no Slurm: install slurmctld, slurmd and their commands"; exit 1; }
	$(SUDO) apt-get update --quiet && $(SUDO) env DEBIAN_FRONTEND=noninteractive \
		apt-get install --quiet --yes --no-install-recommends slurm-wlm

.venv/cluster: .venv/ready
	.venv/bin/python -m pip install --quiet --constraint requirements.lock --editable '.[cluster]'
	@touch $@

.PHONY: FORCE help figures record report example test test-browser test-cluster test-faults lab claims bench scale lint renew clean
