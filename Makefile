# `make` prints what there is. Everything is installed into .venv, and nothing outside it
# but the models, which go to your cache folder (`make doctor` says which).

PYTHON ?= python3
# Which torch to install: auto (the NVIDIA build where there is such a card), cpu, cu130, ...
TORCH ?= auto
# Test processes at once; each keeps to one thread.
JOBS ?= 2

VENV := .venv
BIN := $(VENV)/bin
UV := uv==0.13.9
# A folder of wheels, where you have one, stands in for the choice of a torch build.
WHEELS := $(if $(PIP_FIND_LINKS),$(addprefix --find-links ,$(PIP_FIND_LINKS)),--torch-backend $(TORCH))
# Where Python may not keep what it compiled, each start would compile torch anew: a second or two.
COMPILE := $(if $(PYTHONDONTWRITEBYTECODE),--compile-bytecode)
# Is the environment there, new enough, and its pip whole?
SOUND := import importlib.metadata as m, sys; \
  sys.exit(sys.version_info < (3, 11) or not all(f.locate().exists() for f in m.files("pip")))
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS)

.DEFAULT_GOAL := help
.PHONY: help learn test check lint site site-serve models doctor gpu-check clean

help:  ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

learn: $(VENV)/.learn-ready  ## set everything up and open the course in your browser
	@$(BIN)/python -m lessons

test: $(VENV)/.test-ready  ## run every test (the ten slowest are named at the end)
	$(PYTEST)

check: lint  ## lint, floor plan and the quick tests, in under two minutes
	$(PYTEST) -m "not slow"

lint: $(VENV)/.test-ready  ## what ruff says of style and mistakes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

site: $(VENV)/.test-ready  ## build the website into site/public (needs Node.js and npm)
	$(BIN)/python site/build.py

site-serve: $(VENV)/.test-ready  ## build the website and show it on this machine
	$(BIN)/python site/build.py --serve

models: $(VENV)/.test-ready  ## write stories and train tiny and small anew: about two hours
	$(BIN)/python -m training

doctor: $(VENV)/.learn-ready  ## say what this machine has, what is missing, and how to mend it
	@$(BIN)/minivllm doctor

gpu-check: $(VENV)/.test-ready  ## on a machine with an NVIDIA GPU: test it, record it in benchmarks/
	$(BIN)/python tests/gpu_check.py

clean:  ## remove .venv and every cache; models stay
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	rm -rf site/build site/public
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is written only when its step is done, so an interrupted step starts again.
$(VENV)/.venv-ready:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "minivllm needs Python 3.11 or newer; '$(PYTHON)' is not." \
	       "Name one: make learn PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "'$(PYTHON)' lacks the venv module; on Debian or Ubuntu:" \
	       "apt-get install python3-venv" >&2; exit 1; }
	@$(BIN)/python -c '$(SOUND)' 2>/dev/null \
	  || { echo "making $(VENV)"; $(PYTHON) -m venv --clear $(VENV); }
	@echo "installing uv"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(UV)
	@touch $@

# .installing is there while packages are written: after an interruption they are written anew.
define install
	@echo "installing what minivllm needs into $(VENV): a few minutes the first time"
	@again=$$(test ! -e $(VENV)/.installing || echo --reinstall); touch $(VENV)/.installing; \
	  $(BIN)/python -m uv pip install --python $(BIN)/python $$again $(WHEELS) $(COMPILE) -e '$(1)'
	@rm $(VENV)/.installing
	@touch $@
endef

$(VENV)/.learn-ready: pyproject.toml | $(VENV)/.venv-ready
	$(call install,.)

$(VENV)/.test-ready: pyproject.toml | $(VENV)/.venv-ready
	$(call install,.[test])
	@touch $(VENV)/.learn-ready
