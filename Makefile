# `make train` and `make test` set up `.venv` by themselves.
PYTHON ?= python3
PY := .venv/bin/python
ARGS ?=
RUN_DIR = $(if $(RUN),'$(RUN)')
# Tests side by side; more than the cores have time for makes processes late.
JOBS ?= 2
ORDERS := status kill restart remove add-drafter checkpoint stop

.PHONY: help train attach resume $(ORDERS) test bench check conformance

help:
	@echo 'make train ARGS="..."   train a drafter; without ARGS the quickstart, minutes on a laptop without a GPU'
	@echo 'DETACH=1 make train ...  the same without this terminal; make attach [RUN=runs/...] shows it again'
	@echo 'make resume RUN=runs/x  go on with a run that ended early'
	@echo 'make status|stop|checkpoint|add-drafter [RUN=runs/x], make kill|restart|remove WORKER=drafter-1 [RUN=runs/x]'
	@echo '                        look after a run that is under way, see docs/operating.md'
	@echo 'make test               all tests that need no GPU'
	@echo 'make test-gpu           tests that need a GPU; some need two'
	@echo 'make chaos              20,000 random schedules of deaths against the protocol, then 200 kills of real processes;'
	@echo '                        about an hour; ARGS="--seed 7 --kills 40" for the second part'
	@echo 'make bench              measure what this machine allows, at most half an hour; results in benchmarks/results/'
	@echo 'make check              format, lint, types and tests, as CI runs them'
	@echo 'make conformance        the exported folder in the public dflash reader'
	@echo 'make train ARGS=--help  experiments and overrides, e.g. ARGS="optim.lr=1e-4 cluster.drafters=2"'

train: .venv/ready
	@exec $(PY) -m launcher train $(if $(filter-out 0,$(DETACH)),--detach) $(ARGS)

attach: .venv/ready
	@exec $(PY) -m launcher attach $(RUN_DIR)

resume: .venv/ready
	@exec $(PY) -m launcher resume $(RUN_DIR) $(ARGS)

$(ORDERS): .venv/ready
	@exec $(PY) -m launcher $@ $(if $(WORKER),$(or $(RUN_DIR),runs/latest) $(WORKER),$(RUN_DIR)) $(ARGS)

test: .venv/ready
	@$(PY) -m pytest -m "not gpu" -n $(JOBS) --dist worksteal $(ARGS)

# On a machine with GPUs; PY=python3 uses an interpreter that has everything installed.
test-gpu: $(if $(findstring .venv,$(PY)),.venv/ready)
	@$(PY) -m pytest -m gpu --timeout 300 $(ARGS)

chaos: .venv/ready
	@$(PY) -m tests.protocol_harness --schedules 20000 --seconds 1800 --min-faults 3
	@$(PY) -m tests.chaos --kills 200 $(ARGS)

# The picture needs matplotlib; where it cannot be installed the measurements go on without it.
bench: $(if $(findstring .venv,$(PY)),.venv/ready)
	@$(PY) -c "import matplotlib" 2>/dev/null || \
	  $(PY) -m pip install --quiet --disable-pip-version-check --retries 0 -c constraints.txt -e ".[bench]" || true
	@$(PY) -m benchmarks.suite $(ARGS)

check: .venv/ready
	@$(PY) -m ruff format --check .
	@$(PY) -m ruff check .
	@$(PY) -m mypy
	@$(PY) -m pytest -m "not gpu" -n $(JOBS) --dist worksteal $(ARGS)

# The exported folder against the public reader, which is installed beside the environment, not into it.
conformance: .venv/ready
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target .conformance dflash==0.1.0
	@DFL_CONFORMANCE=.conformance $(PY) -m pytest tests/unit/test_export_conformance.py $(ARGS)

# An installation that was cut off leaves `.venv/unfinished`: the next one begins from nothing.
.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("error: Python 3.11 or newer is needed; give it as make PYTHON=...")'
	@test ! -e .venv/unfinished && $(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	@touch .venv/unfinished
	@echo "installing into .venv (once) ..."
	@$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[test]"
	@$(PY) -c "import hydra, pydantic, pytest, torch, transformers, zmq"
	@rm .venv/unfinished && touch $@

# `.venv/ready` in a `.venv` that has lost its interpreter means nothing.
ifeq ($(wildcard $(PY)),)
.PHONY: .venv/ready
endif
