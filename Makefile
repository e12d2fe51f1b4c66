# Two commands matter: `make demo` and `make test`. Both set up what they need and can be run again. `make check` needs
# no root and no PyTorch, only Python 3.11 or newer.
PYTHON ?= /usr/bin/python3
VENV := .venv
RUN := $(VENV)/bin/python
SITE := NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build
SETUP := PYTHON=$(PYTHON) VENV=$(VENV) tests/setup.sh

.PHONY: demo unit lint check test long fuzz promise audit bench bench-access bench-checkpoint bench-compare bench-dashboard bench-ha bench-hang bench-launcher bench-operators bench-placement bench-program-files bench-recovery bench-sim hardware signals sim docs site wheels packages setup setup-check size versions versions-begun format clean

demo: setup
	@$(RUN) -m tests.demo

# About a minute once it is set up.
unit: setup-check
	@$(RUN) -m tests.run unit

lint: setup-check
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/ruff check .
	@$(RUN) -m mypy
	@$(VENV)/bin/lint-imports
	@$(SITE)

check: lint unit

# Stages that promise times come last: nothing is set up in the background any more.
test: setup versions-begun
	@$(RUN) -m tests.run lint unit patient integration cluster cluster-timed timed

# Hours. The report is build/long/DATE.md.
long: setup versions
	@$(RUN) -m tests.long

# What becomes of each kind of job with each fault, on real clusters: build/promise.json. Hours; what is there is kept. Shorter:
# make promise OPTIONS="--timeouts 60 --faults 'slurmd dead' --pools spare"; with --parallel 3 three sites at the same time
promise: setup
	@$(RUN) -m tests.promise $(OPTIONS)

# Known vulnerabilities of the pinned packages, where a service that knows them answers. Ends with an error where none does.
audit: setup-check
	@$(RUN) -m tests.audit

# Figures in build/bench/NAME.json. `make bench` takes the usual ones; the others are placement (the spare that costs a
# gang least), scale (growth with the fleet: the plots of docs/scale.md), slurm_read (what reading Slurm takes), straggler
# (how good that rule is), access (what readers cost the loop), operators (what a person waits for), dashboard (in a real
# browser), program_files (the start of a program on a spare that has read its files), ha (what a fault of the leader costs
# where another control plane stands by) and hang (who is named when real gangs hang).
bench: setup
	@$(RUN) -m tests.bench

# What got worse since tests/data/bench/ratios.json was kept, in ratios to what was measured beside it. After `make bench`;
# OPTIONS=--keep keeps the new ratios.
bench-compare: setup-check
	@$(RUN) -m tests.bench.compare $(OPTIONS)

bench-placement: setup
	@$(RUN) -m tests.bench placement
bench-access: setup
	@$(RUN) -m tests.bench access
bench-operators: setup
	@$(RUN) -m tests.bench operators
bench-dashboard: setup
	@$(RUN) -m tests.bench dashboard
bench-hang: setup
	@$(RUN) -m tests.bench hang
bench-program-files: setup
	@$(RUN) -m tests.bench program_files
bench-ha: setup
	@$(RUN) -m tests.bench ha

# The launcher with 64 to 12,500 seats, beside the rendezvous of torchrun and NVRx: build/bench/launcher.json.
bench-launcher: setup
	@$(RUN) -m tests.bench.launcher

# Faults under `understudy run` and under plain Slurm, torchrun and NVRx, side by side; what a rival never recovers from
# is measured once and kept (tests/data/bench; OPTIONS=--again). Shorter:
# make bench-recovery OPTIONS="--runs 1 --sides understudy,torchrun --faults xid"
bench-recovery: setup
	@$(RUN) -m tests.bench.recovery $(OPTIONS)

# What saving and restoring cost with each tier, beside torch.save and DCP: build/bench/checkpoint.json.
bench-checkpoint: setup
	@$(RUN) -m tests.bench.checkpoint $(OPTIONS)

# SEEDS simulations of 15 minutes each, from SEED on. It prints those that fail, and what was never seen.
sim: setup-check
	@$(RUN) -m tests.simulator --seed $(or $(SEED),1) --seeds $(or $(SEEDS),240)

# build/bench/sim.json: speed, seeds that fail, and broken code that was not found; drawn.json: which drawn mutants are.
bench-sim: setup-check
	@$(RUN) -m tests.bench.sim
	@$(RUN) -m tests.bench.drawn

# Attacks every inlet of a whole site, on SQLite and then on PostgreSQL: make fuzz SECONDS=60 SEED=1. What was found is in
# build/fuzz.
fuzz: setup-check
	@$(RUN) -m tests.fuzz.whole --seconds $(or $(SECONDS),60) $(if $(SEED),--seed $(SEED))

# What is found of each injected signal, and after what time: docs/signal-table.md, with `make docs`. Three quarters
# of an hour on a core: make signals OPTIONS="--day --trace"
signals: setup-check
	@$(RUN) -m tests.signals $(OPTIONS)

# On a machine with NVIDIA GPUs, at most eight minutes: build/hardware/report.md. As root it also reads the kernel log, and
# after `make setup` it also computes.
hardware: setup-check
	@$(RUN) -m tests.hardware

docs: setup-check
	@$(RUN) -m docs.generate

# The documents as a site, in build/site. A link that leads nowhere is an error.
site: setup-check
	@$(SITE)

# Both distributions, in build/wheels, and what a control plane consists of (SBOM, CycloneDX).
wheels: setup-check
	@deploy/build_wheels.sh $(abspath $(RUN)) build/wheels
	@$(RUN) deploy/sbom.py build/wheels
	@ls build/wheels/*.whl build/wheels/*.cdx.json

# Debian packages for Debian 12 and 13 and Ubuntu 22.04 and 24.04, and RPMs for RHEL 9, in build/packages/current, a folder for each.
# For one of them, in a quarter of the time: make packages SYSTEM=debian-12
packages:
	@$(SETUP) packages
	@$(RUN) -m deploy.packages.build $(if $(SYSTEM),--system $(SYSTEM),--all) build/packages

setup:
	@$(SETUP)

setup-check:
	@$(SETUP) check

# The other versions of Slurm that are tested against, beside this machine's own.
versions: setup
	@tests/testbed/slurm_versions.sh

# Those that `make test` needs, in the background: stages that need them wait for them.
versions-begun: setup
	@mkdir -p build
	@tests/testbed/slurm_versions.sh 26.05 22.05 >build/slurm_versions.log 2>&1 &

# Lines, settings, routes and words: build/size.json.
size: setup-check
	@$(RUN) -m tests.size

format: setup-check
	@$(VENV)/bin/ruff check --fix-only .
	@$(VENV)/bin/ruff format .

clean:
	@rm -rf $(VENV) build /var/tmp/understudy-demo /var/tmp/understudy-demo.lock
