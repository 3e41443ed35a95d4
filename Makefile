# `make train` and `make test` set up `.venv` by themselves.
PYTHON ?= python3
PY := .venv/bin/python
ARGS ?=

.PHONY: train test check help

train: .venv/ready
	@$(PY) -m launcher train $(ARGS)

test: .venv/ready
	@$(PY) -m pytest -m "not gpu" $(ARGS)

check: .venv/ready
	@$(PY) -m ruff format --check .
	@$(PY) -m ruff check .
	@$(PY) -m mypy
	@$(PY) -m pytest -m "not gpu" $(ARGS)

.venv/ready: pyproject.toml constraints.txt
	@test -x $(PY) || $(PYTHON) -m venv .venv
	@echo "installing into .venv (once) ..."
	@$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[test]"
	@touch $@
