# What a person types. Works with GNU make 3.81 (macOS) and any POSIX shell; stamps in .venv make the second run quick.

PYTHON  ?= python3
VENV    ?= .venv
WORKERS ?= 2
ARGS    ?=

BIN     := $(VENV)/bin
PIP     := $(BIN)/python -m pip --disable-pip-version-check
STAMP   := $(VENV)/.kit-stamp
BROWSER_SOURCES := $(shell find labextension -type f -not -path '*/node_modules/*' -not -path '*/lib/*' 2>/dev/null) \
                   $(wildcard kit_jupyter/jupyter/static/chat.js)
CHROMIUM := $(shell command -v chromium 2>/dev/null || command -v chromium-browser 2>/dev/null || \
                    command -v google-chrome 2>/dev/null || \
                    ls "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome" 2>/dev/null)

say = printf '\n\033[1m==> %s\033[0m\n' "$(1)"

.PHONY: help demo lab test matrix matrix-notebooks matrix-ray matrix-lab check record bench docs clean weights
.DEFAULT_GOAL := help

help: ## this list
	@printf 'kit-jupyter: an AI agent that lives in the Jupyter kernel\n\n'
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## (.*)/  make \1|\2/' | \
	  awk -F'|' '{ printf "%-23s %s\n", $$1, $$2 }'
	@printf '\n  PYTHON=python3.12 make ...   another Python (3.11 or newer)\n'
	@printf '  ARGS="-k steer" make test    arguments for pytest\n'

demo: $(STAMP)-demo ## install, fetch the small local model, run the quickstart notebook live, print the answers
	@$(BIN)/kit-jupyter local install
	@$(call say,Running notebooks/01_quickstart.ipynb against the local model)
	@$(BIN)/kit-jupyter demo

lab: $(STAMP)-lab ## open JupyterLab on the quickstart, with all that the example notebooks use
	@$(BIN)/kit-jupyter local install
	@$(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root )notebooks/01_quickstart.ipynb

test: $(STAMP)-test weights ## install what the tests need, run the whole suite
	@if [ -n "$(CHROMIUM)" ]; then $(call say,Browser for the tests: $(CHROMIUM)); \
	 else $(call say,No chromium found: the browser tests will be skipped (Debian: apt-get install chromium)); fi
	@$(call say,Running the tests on $(WORKERS) workers)
	@mkdir -p build; rm -f build/pytest-exit-code; \
	 KIT_CHROMIUM="$(CHROMIUM)" $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -q -m "not slow" $(ARGS); \
	 code=$$?; echo $$code > build/pytest-exit-code; exit $$code

MATRIX ?= 6.29.5 7.0.1 7.1.0 7.2.0 7.3.0
KERNEL_TESTS ?= test_tools_in_kernel.py test_old_kernel.py test_magics.py

matrix: $(STAMP)-test ## the kernel tests on older ipykernels (MATRIX="6.29.5 7.0.1") and on the installed one
	@failed=; for version in $(MATRIX) ""; do \
	  $(call say,ipykernel $${version:-as installed}); \
	  if [ -n "$$version" ]; then export KIT_IPYKERNEL=$$version; else unset KIT_IPYKERNEL; fi; \
	  $(BIN)/python -m pytest -q $(addprefix tests/jupyter/,$(KERNEL_TESTS)) $(ARGS) || failed="$$failed $${version:-installed}"; \
	done; if [ -n "$$failed" ]; then echo "failed on ipykernel:$$failed"; exit 1; fi

weights: $(STAMP)-test
	@$(call say,The small local model (93 MB the first time))
	@$(BIN)/kit-jupyter local install smollm2 || \
	 echo "The weights cannot be had now (no network?): tests that need a live local model will be skipped."

matrix-notebooks: $(STAMP)-test ## each notebook on the oldest ipykernel, and by nbclient, papermill and nbconvert
	$(BIN)/python -m pytest -q -m "" tests/notebooks $(ARGS)

matrix-ray: $(STAMP)-ray ## maps on a Ray cluster of this machine
	build/ray/bin/python -m pytest -q tests/batch/test_ray.py

matrix-lab: $(STAMP)-test build/lab-oldest/.stamp build/lab-others/.stamp ## the extension in the oldest Lab, and beside other extensions
	@failed=; for name in oldest others; do \
	  $(call say,JupyterLab $$(build/lab-$$name/bin/jupyter-lab --version) ($$name)); \
	  KIT_CHROMIUM="$(CHROMIUM)" KIT_LAB_NAME=$$name KIT_LAB_PYTHON=build/lab-$$name/bin/python \
	    $(BIN)/python -m pytest -q -rP tests/lab/test_lab_smoke.py $(ARGS) || failed="$$failed $$name"; \
	done; if [ -n "$$failed" ]; then echo "failed:$$failed"; exit 1; fi

build/lab-oldest/.stamp: LAB_WITH = 'jupyterlab==4.2.*'
build/lab-others/.stamp: LAB_WITH = jupyterlab jupyter-collaboration jupyter-ai pyviz_comms
build/lab-oldest/.stamp build/lab-others/.stamp: $(STAMP)-test
	@$(call say,Making $(@D) with $(LAB_WITH))
	@$(BIN)/python -m venv $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check $(LAB_WITH) -e .
	@touch $@

check: $(STAMP)-test ## ruff, mypy --strict, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

record: $(STAMP)-test ## record the example notebooks anew: 01 from the local model, the others from their script
	@$(BIN)/kit-jupyter local install
	@$(BIN)/kit-jupyter demo --record
	@KIT_DATA_DIR=build/data $(BIN)/python -m tests.notebooks.teacher $(ARGS)

bench: $(STAMP)-test ## speed, side by side with others, in one run
	$(BIN)/python -m tests.benchmarks $(ARGS)

docs: $(STAMP)-docs ## build the documentation into build/site
	$(BIN)/mkdocs build --strict --site-dir build/site

clean: ## remove what was built and installed here (the model cache stays: kit-jupyter local remove)
	rm -rf $(VENV) build dist kit_jupyter/labextension labextension/lib labextension/node_modules \
	  tests/labextension/node_modules .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage*

# -- how things come to be

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null 2>&1 || { \
	  echo "$(PYTHON) is not installed. Install Python 3.11 or newer (Debian: apt-get install python3 python3-venv)"; \
	  echo "or name another one: PYTHON=/path/to/python3.12 make ..."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$(PYTHON) is $$($(PYTHON) -V 2>&1); kit-jupyter needs Python 3.11 or newer."; \
	  echo "Name another one: PYTHON=python3.12 make ..."; exit 1; }
	@$(call say,Making $(VENV) with $$($(PYTHON) -V 2>&1))
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "$(PYTHON) has no venv module. Debian and Ubuntu keep it apart: apt-get install python3-venv"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "could not make $(VENV); is the disk full or read-only?"; exit 1; }

# $(1): extras; $(2): what is downloaded the first time
install = $(call say,Installing kit-jupyter with $(1) ($(2) the first time; a cache serves the next)); \
	$(PIP) install -c constraints.txt -e '.[$(1)]' || { \
	  echo; echo "The installation failed; the reason is above."; \
	  echo "No network? The first run needs the Python package index (and the npm registry to build the browser side)."; \
	  echo "Behind a proxy or a mirror? pip and npm read their usual settings (PIP_INDEX_URL, HTTPS_PROXY, npm config)."; \
	  exit 1; }

$(STAMP)-demo: $(BIN)/python pyproject.toml constraints.txt kit_jupyter/labextension/static/style.js
	@$(call install,demo$(comma)local$(comma)lab,about 250 MB)
	@touch $@

$(STAMP)-lab: $(STAMP)-demo
	@$(call install,notebooks$(comma)local$(comma)lab,about 80 MB more)
	@touch $@

$(STAMP)-test: $(BIN)/python pyproject.toml constraints.txt tests/labextension/package-lock.json kit_jupyter/labextension/static/style.js
	@$(call install,test,about 600 MB)
	@$(call say,Test tools for the browser side (31 MB))
	@PATH="$$PATH:$(abspath $(BIN))" npm --prefix tests/labextension ci --no-audit --no-fund || \
	 echo "npm could not install them: the tests of the keymap in TypeScript will be skipped."
	@touch $(STAMP)-demo $(STAMP)-lab $@

$(STAMP)-docs: $(BIN)/python pyproject.toml
	@$(call install,docs,about 100 MB)
	@touch $@

# Ray brings much and pins some; it has an environment of its own.
$(STAMP)-ray: pyproject.toml
	@$(call say,Ray in an environment of its own (about 100 MB))
	@$(PYTHON) -m venv build/ray
	@build/ray/bin/python -m pip --disable-pip-version-check install -q -c constraints.txt -e '.[ray]' \
	 pandas polars pyarrow pytest pytest-asyncio pytest-timeout
	@touch $@

# The build skips what exists, so stale assets go first; the install above then builds them anew.
kit_jupyter/labextension/static/style.js: $(BROWSER_SOURCES)
	@rm -rf kit_jupyter/labextension labextension/lib
	@rm -f $(STAMP)-demo $(STAMP)-lab $(STAMP)-test

comma := ,
