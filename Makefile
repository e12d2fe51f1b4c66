# Two commands matter: `make demo` and `make test`. Both set up what they need and can be run again.
PYTHON ?= /usr/bin/python3
VENV := .venv
RUN := $(VENV)/bin/python

.PHONY: demo test check bench bench-recovery docs wheels setup versions format clean

demo: setup
	@$(RUN) -m tests.demo

# Clusters are mostly waited for: side by side, the contract's tests of one version of Slurm on one. Those that promise
# times one by one.
test: check versions
	@$(RUN) -m pytest -m "cluster and not timed" -n 2 --dist loadgroup --durations 15
	@$(RUN) -m pytest -m "cluster and timed" --durations 15

check: setup
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/ruff check .
	@$(RUN) -m mypy
	@$(VENV)/bin/lint-imports
	@$(RUN) -m pytest -m "not cluster and not timed" -q -n 2 --dist worksteal
	@$(RUN) -m pytest -m "timed and not cluster" -q

bench: setup
	@$(RUN) -m tests.bench.ingest
	@$(RUN) -m tests.bench.slurm_read
	@$(RUN) -m tests.bench.tick
	@$(RUN) -m tests.bench.hook
	@$(RUN) -m tests.bench.footprint
	@$(RUN) -m tests.bench.straggler

# Faults under `understudy run` and under plain Slurm, torchrun and NVRx, side by side: about half an hour. Shorter:
# make bench-recovery OPTIONS="--runs 1 --sides understudy,torchrun --faults xid"
bench-recovery: setup
	@$(RUN) -m tests.bench.recovery $(OPTIONS)

docs: setup
	@$(RUN) docs/generate.py

# Both distributions, in build/wheels.
wheels: setup
	@deploy/build_wheels.sh $(abspath $(RUN)) build/wheels
	@ls build/wheels/*.whl

setup:
	@PYTHON=$(PYTHON) VENV=$(VENV) tests/testbed/setup.sh

# The other versions of Slurm that are tested against, beside this machine's own.
versions: setup
	@tests/testbed/slurm_versions.sh

format: setup
	@$(VENV)/bin/ruff check --fix-only .
	@$(VENV)/bin/ruff format .

clean:
	@rm -rf $(VENV) build /var/tmp/understudy-demo /var/tmp/understudy-demo.lock
