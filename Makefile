# `make` prints what there is. Everything runs in .venv, made on first use, or in an environment of your own:
# `make figures PYTHON=python`. What a target needs is installed when it is first made.

PYTHON ?= .venv/bin/python
SCALE ?= paper
CHROMIUM ?= $(firstword $(shell command -v chromium chromium-browser google-chrome) /usr/bin/chromium)
$(if $(findstring :,$(CURDIR)),$(error $(CURDIR): a colon in the path is two folders to Python; move the checkout))
export PYTHONPATH := $(CURDIR):$(CURDIR)/instruments$(if $(PYTHONPATH),:$(PYTHONPATH))
# What the reader gives is data: a recipe has it from the environment, and neither make nor the shell expands it.
GIVEN := SCALE EXECUTOR JOBS KERNEL QKV FORMAT KILLS SEEDS CHROMIUM
$(foreach name,$(GIVEN),$(if $(filter file,$(origin $(name))),,$(eval override $(name) := $$(value $(name)))))
export $(GIVEN)
FA_LIB = @exec $(PYTHON) -m fa_lib
MEASURE = OMP_NUM_THREADS=1 $(PYTHON) -m benchmarks
has = $(if $(filter .venv/bin/python,$(PYTHON)),.venv/.$1)
SUDO := $(if $(filter-out 0,$(shell id -u)),sudo)
help: # print the targets that have a description
	@grep -hE '^[a-z -]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 30

figures: $(call has,figures) $(if $(filter slurm,$(EXECUTOR)),$(call has,cluster)) ## draw every figure into build/: run the notebooks that are not up to date (two at a time; JOBS=1: one; EXECUTOR=slurm: on a cluster; make figure4: one of them)
	$(FA_LIB) dev figures --scale="$$SCALE" $(if $(EXECUTOR),--executor="$$EXECUTOR") $(if $(JOBS),--jobs="$$JOBS")
figure%: $(call has,figures) # of that number, as figure4 or figure9b
	$(FA_LIB) dev figures --scale="$$SCALE" $*
tutorials: $(call has,figures) # draw the tutorials' figures, too
	$(FA_LIB) dev figures tutorials
publish: figures tutorials ## make the figures and tables of build/ the committed ones, and renew the ledger
study: $(call has,figures) ## train the models of figures 7 and 8 for hours, with many seeds and arms, into data/recorded/cpu; resumes
bench: $(call has,test) ## measure what is promised of speed, each as a ratio in one run
publish study:
	$(FA_LIB) dev $@
bench:
	$(PYTHON) -m benchmarks.bench

lab: $(call has,figures) ## open JupyterLab on notebooks/00_attention_in_low_precision.ipynb; notebooks/tutorials/panel.ipynb has sliders
	$(PYTHON) -m jupyterlab --ServerApp.root_dir="$$PWD" $(if $(SUDO),,--allow-root) \
		--LabApp.default_url='/lab/tree/notebooks/00_attention_in_low_precision.ipynb?file-browser-path=/' # else it shows notebooks/
report: $(call has,core) ## KERNEL=path/to/file.py:function, KERNEL=package.module:function or QKV=file.safetensors: a verdict, as one HTML page
	$(FA_LIB) check $(if $(QKV),tensors $(if $(FORMAT),--format="$$FORMAT") -- "$$QKV",kernel -- "$$KERNEL")
gallery gallery-quick: $(call has,gallery) ## judge the attention kernels of other projects into data/gallery; or five of them, into build/gallery
gallery-gpu gallery-gpu-quick: $(call has,gpu) ## the same for GPU kernels, without a GPU; or three of them
gallery gallery-quick gallery-gpu gallery-gpu-quick:
	$(FA_LIB) dev gallery $(addprefix --,$(filter gpu quick,$(subst -, ,$@)))
mutants mutants-quick: $(call has,test) ## how good is the judge, on kernels with and without a fault, into docs/reference/mutants.md (SEEDS=5: so many draws); or a part, in a few minutes
	$(MEASURE).judge $(filter --quick,$(subst mutants,-,$@)) $(if $(SEEDS),--seeds="$$SEEDS")

# What writes another table or page of the repository: docs/reference/command_line.md
original blame: $(call has,gpu)
heads reports: $(call has,test)
original blame heads reports:
	$(MEASURE).$(subst blame,blamed,$(subst heads,pretrained,$@))
example: $(call has,figures) ; @$(PYTHON) examples/check_a_model.py
claims: $(call has,core) ; $(FA_LIB) dev claims --renew
renew: $(call has,test) ; TQDM_DISABLE=1 $(PYTHON) -m jupyter execute --inplace notebooks/*.ipynb notebooks/*/*.ipynb

test: $(call has,test) ## run the tests that need no server, the notebooks among them; test-judge, test-docs, test-gpu, ... run others
	OMP_NUM_THREADS=1 $(PYTHON) -m pytest --nbval-lax --nbval-cell-timeout=300 -n 2 --dist loadscope --no-loadscope-reorder
test-%: RUNS = $(wildcard tests/$* tests/$*.py tests/attention_$*)
test-fast: RUNS = --dist loadfile tests --ignore-glob "*/test_training*" -m "not slow" ## run the tests without notebooks and training, in under a minute
test-judge: RUNS = tests/attention_check
test-gpu: RUNS = --dist worksteal tests/gpu $(if $(FULL),,-m "not full")
test-faults: RUNS = --dist worksteal -rsP tests/faults.py $(if $(KILLS),--kills="$$KILLS")
test-install test-browser: RUNS = -n 0 -s tests/$*.py
test-gallery test-gpu test-browser test-cluster: test-%: $(call has,%)
test-browser: $(if $(wildcard $(CHROMIUM)),,/usr/bin/chromium)
test-cluster: $(if $(shell command -v slurmctld),,/usr/sbin/slurmctld)
test-%: $(call has,test)
	OMP_NUM_THREADS=1 $(PYTHON) -m pytest -n 2 --dist loadscope --no-loadscope-reorder $(RUNS)

docs: $(call has,docs) ## build the site into docs/_build: the pages, the interface, the notebooks as `make figures` ran them
	$(PYTHON) -m sphinx -j auto -W --keep-going -q -b html docs docs/_build
lint: $(call has,test) ## check and format the code, check its types and imports, print its lines, strip the notebooks
	$(PYTHON) -m ruff check --fix . && $(PYTHON) -m ruff format .
	$(PYTHON) -m basedpyright --pythonpath $(PYTHON)
	$(PYTHON) -c "from importlinter.cli import lint_imports_command as run; run()"
	$(PYTHON) -m nbstripout notebooks/*.ipynb notebooks/*/*.ipynb --keep-count --keep-output-type stream \
		--extra-keys "metadata.papermill cell.metadata.papermill cell.metadata.execution metadata.language_info.version"
	@$(PYTHON) -m benchmarks.sizes
clean: ## remove the environment and everything built; committed results and figures stay
	rm -rf .venv build docs/_build docs/notebooks docs/jupyter_execute .pytest_cache .hypothesis .ruff_cache

/usr/bin/chromium /usr/sbin/slurmctld:
	$(SUDO) apt-get update --quiet && $(SUDO) env DEBIAN_FRONTEND=noninteractive \
		apt-get install --quiet --yes --no-install-recommends $(if $(findstring slurm,$@),slurm-wlm,chromium)
.venv/bin/python:
	python3 -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v <= (3, 13) else f"Python {v[0]}.{v[1]}: 3.11, 3.12 or 3.13 is needed")'
	python3 -m venv .venv
.venv/.%: EXTRAS = notebooks,train,test,$(filter browser cluster,$*)
.venv/.figures .venv/.gallery: EXTRAS = notebooks,train
.venv/.core: EXTRAS =
.venv/.docs: EXTRAS = docs
.venv/.gallery: MORE = instruments/attention_gallery
.venv/.gpu: MORE = instruments/ptx_machine
.venv/.gallery .venv/.gpu: $(wildcard instruments/*/requirements.*)
.venv/.%: pyproject.toml requirements.hashes install_locked.py | .venv/bin/python
	.venv/bin/python install_locked.py '$(EXTRAS)' $(MORE)
	@touch $@
.PHONY: figures docs # folders of these names
