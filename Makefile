# `make` prints what there is. Everything runs in .venv, made on first use, or in an environment of your own:
# `make figures PYTHON=python`. What a target needs is installed when it is first made.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:

PYTHON ?= .venv/bin/python
SCALE ?= paper
ifneq (,$(findstring :,$(CURDIR)))
$(error $(CURDIR): a colon in the path is two folders to Python; move the checkout)
endif
export PYTHONPATH := $(CURDIR):$(CURDIR)/instruments$(if $(PYTHONPATH),:$(PYTHONPATH))

# What the reader gives is data: a recipe has it from the environment, and neither make nor the shell expands it.
GIVEN := SCALE EXECUTOR JOBS KERNEL QKV FORMAT KILLS SEEDS CHROMIUM

FA_LIB = $(PYTHON) -m fa_lib
NOTEBOOKS := $(wildcard notebooks/[0-9]*.ipynb)
OWN := $(filter .venv/bin/python,$(PYTHON))
has = $(if $(OWN),.venv/.$1)
SUDO := $(if $(filter-out 0,$(shell id -u)),sudo)
ifeq ($(origin CHROMIUM),undefined)
CHROMIUM := $(firstword $(shell command -v chromium chromium-browser google-chrome) /usr/bin/chromium)
endif
$(foreach name,$(GIVEN),$(eval override $(name) := $$(value $(name))))
export $(GIVEN)
SLURM := $(shell command -v slurmctld)

help: ## print this
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

figures: $(call has,figures) $(if $(filter slurm,$(EXECUTOR)),$(call has,cluster)) ## draw every figure into build/: run the notebooks that are not up to date (two at a time; JOBS=1: one; EXECUTOR=slurm: on a cluster; make figure4: one of them)
	@FA_LIB_PARENT=$$PPID $(FA_LIB) dev figures --scale="$$SCALE" $(if $(EXECUTOR),--executor="$$EXECUTOR") $(if $(JOBS),--jobs="$$JOBS")

figure%: $(call has,figures) # of that number, as figure4 or figure9b
	@FA_LIB_PARENT=$$PPID $(FA_LIB) dev figures --scale="$$SCALE" $*

publish: figures ## make the figures and tables of build/ the committed ones, and renew the ledger
	@$(FA_LIB) dev publish

study: $(call has,figures) ## train the models of figures 7 and 8 for hours, with many seeds and arms, into data/recorded/cpu; resumes
	@$(FA_LIB) dev study

report: $(call has,core) ## KERNEL=path/to/file.py:function, KERNEL=package.module:function or QKV=file.safetensors: a verdict, as one HTML page
	@$(FA_LIB) check $(if $(QKV),tensors $(if $(FORMAT),--format="$$FORMAT") -- "$$QKV",kernel -- "$$KERNEL")

gallery: $(call has,gallery) ## judge the attention kernels of other projects into data/gallery, docs/gallery and figures/gallery
	@$(FA_LIB) dev gallery

original: $(call has,gpu) ## hold FlashAttention-2's own CUDA kernels beside the emulator, without a GPU, into data/gpu; resumes
	OMP_NUM_THREADS=1 $(PYTHON) -m benchmarks.original

blame: $(call has,gpu) ## which line of five GPU kernels loses the digits, without a GPU, into data/blame; the same command resumes
	OMP_NUM_THREADS=1 $(PYTHON) -m benchmarks.blamed

heads: $(call has,figures) ## the paper's kernel in the heads of two trained models, into data/heads; fetches two packages, 170 MB
	OMP_NUM_THREADS=1 $(PYTHON) -m benchmarks.pretrained

gallery-gpu: $(call has,gpu) ## judge GPU kernels of other projects without a GPU, in a GPU's arithmetic, into data/gallery, docs/gallery and figures/gallery
	@$(FA_LIB) dev gallery --gpu

gallery-gpu-quick: $(call has,gpu) ## the same for three of them, in a minute or two, into build/gallery
	@$(FA_LIB) dev gallery --gpu --quick

gallery-quick: $(call has,gallery) ## the same for five of them, in a few minutes, into build/gallery
	@$(FA_LIB) dev gallery --quick

example: $(call has,figures) ## check a model: a tiny decoder under the probe, which saves the worst call for `make report`
	@$(PYTHON) examples/check_a_model.py

test: $(call has,test) ## run the tests that need no server, the notebooks among them (nbval)
	OMP_NUM_THREADS=1 $(PYTHON) -m pytest -n 2 --dist loadscope --no-loadscope-reorder

test-fast: $(call has,test) ## under a minute: no notebook, no training
	OMP_NUM_THREADS=1 $(PYTHON) -m pytest tests --override-ini addopts=-q -n 2 --dist loadfile \
		--ignore-glob "*/test_training*" -m "not slow"

test-judge: $(call has,test) ## judge small kernels, each with a known fault or with none, and see what is found
	OMP_NUM_THREADS=1 $(PYTHON) -m pytest --override-ini addopts=-q -n 2 --dist loadscope --no-loadscope-reorder tests/attention_check

test-attacks: $(call has,test) ## try again what broke: damage, stale numbers, hostile files and settings
	OMP_NUM_THREADS=1 $(PYTHON) -m pytest --override-ini addopts=-q -n 2 --dist loadscope --no-loadscope-reorder tests/attacks

test-install: $(call has,test) ## install the built wheel in an empty environment, in another folder, and judge a kernel there
	$(PYTHON) -m pytest -s tests/install.py

test-docs: $(call has,test) ## run every block of README, docs/start and docs/gpu in a fresh clone and a fresh environment
	OMP_NUM_THREADS=1 $(PYTHON) -m pytest --override-ini addopts=-q -n 2 --dist loadscope tests/docs.py

renew-docs: $(call has,test) ## write again what docs/start/page.md quotes of a check
	OMP_NUM_THREADS=1 $(PYTHON) tests/docs.py

test-browser: $(call has,browser) $(if $(wildcard $(CHROMIUM)),,/usr/bin/chromium) ## test `make lab` in a real browser, Chromium
	$(PYTHON) -m pytest -s tests/browser.py

test-cluster: $(call has,cluster) $(if $(SLURM),,/usr/sbin/slurmctld) ## test sweeps, training and notebooks on a Slurm of two nodes, started on this machine
	$(PYTHON) -m pytest -n 2 --dist worksteal tests/cluster

test-faults: $(call has,test) ## kill, fill and damage at random, and start again: the same bits (KILLS=200: more kills)
	OMP_NUM_THREADS=1 TQDM_DISABLE=1 $(PYTHON) -m pytest --override-ini addopts=-q -n 2 --dist worksteal -rsP \
		tests/faults.py $(if $(KILLS),--kills="$$KILLS")

test-gallery: $(call has,test) $(call has,gallery) ## test the adapters of the gallery, with the projects' libraries, and the reproductions
	OMP_NUM_THREADS=1 $(PYTHON) -m pytest --override-ini addopts=-q -n 2 tests/attention_gallery

test-gpu: $(call has,gpu) ## compile CUDA kernels without a GPU, run them in a GPU's arithmetic, hold that to a simulator by others, ptxas and gcc (FULL=1: all of flash-attn's)
	OMP_NUM_THREADS=1 $(PYTHON) -m pytest --override-ini addopts=-q -n 2 $(if $(FULL),,-m "not full") --dist worksteal tests/gpu

lab: $(call has,figures) ## open JupyterLab on notebooks/00_explore.ipynb: sliders for every choice, drawn live
	$(PYTHON) -m jupyterlab --ServerApp.root_dir="$$PWD" $(if $(SUDO),,--allow-root) \
		--LabApp.default_url='/lab/tree/notebooks/00_explore.ipynb?file-browser-path=/' # else it shows notebooks/

claims: $(call has,core) ## print the ledger: published, ours, verdict; and renew docs/paper/ledger.md and docs/paper/claims.md
	@$(FA_LIB) dev claims --renew

bench: $(call has,test) ## measure what is promised of speed, each as a ratio in one run
	@$(FA_LIB) dev bench

growth: $(call has,figures) ## how time and memory of `tiled` grow with N and heads, into benchmarks/growth.csv and .png
	$(PYTHON) -m benchmarks.growth

peers: $(call has,peers) ## fa_lib beside other libraries that do a part of what it does, into build/peers.md
	OMP_NUM_THREADS=1 $(PYTHON) -m benchmarks.peers

mutants: $(call has,test) ## how good is the judge: 88 mutants and 32 right kernels of two sets, and two other judges, into docs/reference/mutants.md (SEEDS=5: so many draws)
	OMP_NUM_THREADS=1 $(PYTHON) -m benchmarks.judge $(if $(SEEDS),--seeds="$$SEEDS")

mutations: $(call has,test) ## what the judge says now of those defects made by machine that it did not fail at first, into docs/reference/mutants.md
	OMP_NUM_THREADS=1 $(PYTHON) -m benchmarks.mutations

mutants-quick: $(call has,test) ## every third kernel, one draw, our judge alone, in a few minutes
	OMP_NUM_THREADS=1 $(PYTHON) -m benchmarks.judge --quick

reports: $(call has,core) ## how good is `fa-lib explain`: public reports of attention that differs, by the libraries of then where they run here, into docs/reports.md
	OMP_NUM_THREADS=1 $(PYTHON) -m benchmarks.reports

times: $(call has,test) ## write docs/operate/times.md: where the time of `make figures` goes, from what it left in build/
	$(PYTHON) benchmarks/times.py

docs: $(call has,docs) ## build the site into docs/_build: the pages, the interface, the notebooks as `make figures` ran them
	$(PYTHON) -m sphinx -j auto -W --keep-going -q -b html docs docs/_build
	@echo "the site is in docs/_build/index.html"

lint: $(call has,test) ## check and format the code, check its types, its words and the workflows, strip the notebooks
	$(PYTHON) -m ruff check --fix . && $(PYTHON) -m ruff format .
	$(PYTHON) -m basedpyright --pythonpath $(PYTHON)
	$(PYTHON) -m pytest -q tests/test_words.py
	$(PYTHON) -m check_jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	for f in $(NOTEBOOKS); do $(PYTHON) -m nbstripout "$$f" --keep-count --keep-output-type stream \
		--extra-keys "metadata.papermill cell.metadata.papermill cell.metadata.execution metadata.language_info.version"; done

renew: $(call has,test) ## run the notebooks at their defaults and keep the text that nbval compares with
	for f in $(NOTEBOOKS); do TQDM_DISABLE=1 $(PYTHON) -m jupyter execute --inplace "$$f"; done
	@$(MAKE) --no-print-directory lint

clean: ## remove the environment and everything built; committed results and figures stay
	rm -rf .venv build docs/_build docs/notebooks docs/jupyter_execute .pytest_cache .hypothesis .ruff_cache

.venv/bin/python:
	python3 -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v <= (3, 13) else f"Python {v[0]}.{v[1]}: 3.11, 3.12 or 3.13 is needed")'
	python3 -m venv .venv

.venv/.core: EXTRAS :=
.venv/.figures: EXTRAS := notebooks,train
.venv/.test: EXTRAS := notebooks,train,test
.venv/.browser: EXTRAS := notebooks,train,test,browser
.venv/.cluster: EXTRAS := notebooks,train,test,cluster
.venv/.docs: EXTRAS := docs
.venv/.%: pyproject.toml requirements.hashes install_locked.py | .venv/bin/python
	.venv/bin/python install_locked.py '$(EXTRAS)'
	@touch $@

.venv/.gallery: instruments/attention_gallery/requirements.txt instruments/attention_gallery/requirements.hashes pyproject.toml requirements.hashes \
		install_locked.py | .venv/bin/python
	.venv/bin/python install_locked.py notebooks,train instruments/attention_gallery
	@touch $@

.venv/.gpu: instruments/ptx_machine/requirements.txt instruments/ptx_machine/requirements.hashes pyproject.toml requirements.hashes \
		install_locked.py | .venv/bin/python
	.venv/bin/python install_locked.py notebooks,train,test instruments/ptx_machine
	@touch $@

.venv/.peers: benchmarks/peers/requirements.txt benchmarks/peers/requirements.hashes .venv/.gpu
	.venv/bin/python install_locked.py notebooks,train,test benchmarks/peers
	@touch $@

/usr/bin/chromium:
	@command -v apt-get > /dev/null || { echo "no Chromium: install one, or say where it is: make test-browser CHROMIUM=path"; exit 1; }
	$(SUDO) apt-get update --quiet && $(SUDO) apt-get install --quiet --yes --no-install-recommends chromium

/usr/sbin/slurmctld:
	@command -v apt-get > /dev/null || { echo "no Slurm: install slurmctld, slurmd and their commands"; exit 1; }
	$(SUDO) apt-get update --quiet && $(SUDO) env DEBIAN_FRONTEND=noninteractive \
		apt-get install --quiet --yes --no-install-recommends slurm-wlm

.PHONY: help figures publish study report gallery blame heads gallery-gpu gallery-gpu-quick gallery-quick original example test test-fast test-judge test-attacks test-install test-docs renew-docs test-browser test-cluster test-faults test-gallery test-gpu lab claims bench growth peers mutants mutants-quick mutations reports docs lint renew clean
