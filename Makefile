# Everything happens in this checkout: the virtual environment is .venv, and nothing is installed
# elsewhere. A stamp file in it says that it is complete and newer than the files it was made from.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# More options for pip, for instance an index that has torch without CUDA.
PIP_FLAGS ?=
PIP_INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) -c constraints.txt
EXPERIMENT ?= examples/lunarlander/lunarlander.toml
# Which of the tests of deployment, as `make test-deploy DEPLOY=bookworm`; all if empty.
DEPLOY ?=
SEARCH ?= examples/lunarlander/search.toml
# Where the repository is, for the addresses in a release: https://host/owner/name.
REPOSITORY ?=

# How many test files run at once: one more than there are cores, since tests wait as much as they
# compute. A file's tests stay together: what it starts is started once. tests/conftest.py has their
# order.
WORKERS ?= 3
PYTEST = $(BIN)/python -m pytest
TOGETHER = -n $(WORKERS) --dist loadfile --no-loadscope-reorder
SHELF = tests/deploy/test_shelf.py
# A target of its own, since it takes as long as all the others.
FIRST_HOUR = tests/deploy/test_first_hour.py
DEPLOYED = $(PYTEST) -m deploy --exitfirst -rs --durations=12 -k "$(DEPLOY)"
# The tests of the pure folders, and the laws of the house.
FAST = tests/test_house.py tests/config tests/protocol tests/server

# The tests start some hundred processes; without bytecode each would compile the package anew.
export PYTHONDONTWRITEBYTECODE :=

# Files run beside each other, so NumPy and torch have one thread there, as in the program.
test test-fast coverage: export OMP_NUM_THREADS := 1
test test-fast coverage: export OPENBLAS_NUM_THREADS := 1

INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev
INSTALLED_DEPLOY := $(VENV)/.installed-deploy
INSTALLED_SEARCH := $(VENV)/.installed-search
PEERS := benchmarks/.venv
INSTALLED_PEERS := $(PEERS)/.installed
# What looks at packages has an environment of its own, and changes nobody's packages.
TOOLS := build/tools
INSTALLED_TOOLS := $(TOOLS)/.installed
# So has what builds the site: it reads the package, and needs neither torch nor an environment.
DOCS := build/docs-tools
INSTALLED_DOCS := $(DOCS)/.installed
# So has what trains in the environments of well-known packages: some bring others' versions.
PACKAGES := build/packages
INSTALLED_PACKAGES := $(PACKAGES)/.installed
# So has what makes mutants. It works on a copy of what git's index holds, and calls .venv for tests.
MUTATION := build/mutation-tools
INSTALLED_MUTATION := $(MUTATION)/.installed
# What `make mutants` mutates, and the tests that are to notice.
MUTATED ?= genkidama/config genkidama/protocol genkidama/server
MUTATED_TESTS ?= tests/config tests/protocol tests/server
ROLES := parent child
# What `make fuzz` does; no TARGETS means all.
SECONDS ?= 60
TARGETS ?=

.DEFAULT_GOAL := help
.PHONY: help install train search test test-fast test-slow test-page test-deploy test-first-hour test-packages test-versions fuzz simulate simulate-planted coverage lint docs format mutants faults audit sbom hashes release tag pictures peers clean

help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(INSTALLED) ## Make .venv and install Genkidama into it.

train: $(INSTALLED) ## Train LunarLander with a parent and two children on this machine.
	$(BIN)/genkidama train $(EXPERIMENT)

search: $(INSTALLED_SEARCH) ## Search for hyperparameters of A3C on LunarLander with two nodes on this machine.
	$(BIN)/genkidama search $(SEARCH)

test: $(INSTALLED_DEV) ## Run the tests, three files at a time.
	$(PYTEST) $(TOGETHER) -m "not slow and not deploy"

test-fast: $(INSTALLED_DEV) ## Run the tests of the pure modules, which take seconds.
	$(PYTEST) $(TOGETHER) -m "not slow" $(FAST)

test-slow: $(INSTALLED_DEV) ## Run the tests that take minutes.
	$(PYTEST) -m "slow and not deploy"

test-page: $(INSTALLED_DEV) ## Run all tests of the page, in a real browser (chromium), too.
	$(PYTEST) -rs tests/plugins/dashboard

# Two at a time here, too: the shelf is one long story. Not by pytest-xdist: it kills what it interrupts,
# and systems would go on running. Status 5 says that DEPLOY has chosen no test of the one or the other.
test-deploy: $(INSTALLED_DEPLOY) ## Run the playbooks on real Debian systems (root, network namespaces, 20 minutes).
	@said=$$(mktemp); shelf=0; others=0; set -x; \
	$(DEPLOYED) --ignore=$(SHELF) --ignore=$(FIRST_HOUR) tests/deploy > $$said 2>&1 & beside=$$!; \
	$(DEPLOYED) $(SHELF) || shelf=$$?; \
	wait $$beside || others=$$?; \
	cat $$said; rm $$said; \
	case $$shelf,$$others in 0,0 | 0,5 | 5,0) ;; *) exit 1 ;; esac

test-first-hour: $(INSTALLED_DEV) ## Type a newcomer's first hour on a fresh Debian (root, 15 minutes).
	$(PYTEST) -m deploy -rs $(FIRST_HOUR)

test-packages: $(INSTALLED_PACKAGES) ## Train for eight seconds in environments of many packages (15 minutes, 1 GB).
	PACKAGES=1 $(PACKAGES)/bin/python -m pytest -p no:cacheprovider --tb=short -v tests/test_packages.py

# Of Python's version PYTHON, whose wheels the lowest versions must have.
test-versions: $(INSTALLED_TOOLS) ## Test the pure folders and train with the lowest and with the highest dependencies.
	@set -ex; for resolution in lowest-direct highest; do \
		at=build/versions/$$resolution; rm -rf $$at; $(PYTHON) -m venv $$at; \
		$(TOOLS)/bin/uv pip install --quiet --python $$at/bin/python --resolution $$resolution --no-build-package numpy \
			-e ".[lander,play,page,figures]" hypothesis psutil pytest pytest-asyncio pytest-timeout; \
		$$at/bin/python -m pytest -q -p no:cacheprovider $(FAST); \
		$$at/bin/genkidama train lunarlander --set stop.seconds=20 --episodes 20 --out $$at/run; \
	done

fuzz: $(INSTALLED_DEV) ## Fuzz all that reads what others send or keep, SECONDS for each of TARGETS (Atheris).
	@$(PIP_INSTALL) atheris
	$(BIN)/python -m tests.fuzzing $(TARGETS) --seconds $(SECONDS)

# Day SEED with the machines' logs, SEEDS days from day FROM on, or HOURS on all cores, with a row
# for each fifty days in build/days.jsonl: the same command goes on where the last one was.
simulate: $(INSTALLED_DEV) ## Play days of a parent and its children in virtual time (docs/notes/reliability.md).
	$(BIN)/python -m tests.simulation $(if $(HOURS),hours $(HOURS),$(if $(SEED),--seed $(SEED),--from $(or $(FROM),0) --seeds $(or $(SEEDS),200)))

simulate-planted: $(INSTALLED_DEV) ## Plant bugs, and play days until each is noticed.
	$(BIN)/python -m tests.simulation planted --seeds $(or $(SEEDS),1000)

coverage: $(INSTALLED_DEV) ## Run the tests with coverage.py, also in the processes they start: build/coverage.
	@$(PIP_INSTALL) coverage
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -m "not slow and not deploy"
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage html --quiet --directory build/coverage
	$(BIN)/coverage report --skip-covered --sort cover | tee build/coverage/report.txt

lint: $(INSTALLED_DEV) ## Check format, lint, types and who imports whom.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

docs: $(INSTALLED_DOCS) ## Build the documentation, and that of each release, into build/site, and check its links.
	@rm -rf build/site
	@PYTHONDONTWRITEBYTECODE=1 $(DOCS)/bin/python -m docs.site.build build/site
	@# It is read without internet, too.
	@! grep -rE --include='*.html' '<(script|link|img|iframe)[^>]* (src|href)="(https?:)?//' build/site
	@echo build/site/index.html

format: $(INSTALLED_DEV) ## Format the code and mend what ruff can mend.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# In annotations, which nothing evaluates, no test can see another operator than |.
mutants: $(INSTALLED_DEV) $(INSTALLED_MUTATION) ## Mutate the pure folders: which mutants no test sees (hours; docs/notes/reliability.md).
	@rm -rf build/mutants build/mutants.sqlite && git checkout-index --all --prefix=build/mutants/
	@printf '%s\n' '[cosmic-ray]' 'module-path = [$(foreach path,$(MUTATED),"$(path)",)]' 'timeout = 600.0' \
		'test-command = "$(CURDIR)/$(PYTEST) -q -x -p no:cacheprovider $(MUTATED_TESTS)"' \
		'distributor.name = "local"' \
		'filters.operators-filter.exclude-operators = ["core/ReplaceBinaryOperator_BitOr_.*"]' > build/mutants.toml
	@set -ex; cd build/mutants; tools=$(CURDIR)/$(MUTATION)/bin; \
	$$tools/cosmic-ray baseline ../mutants.toml; \
	$$tools/cosmic-ray init ../mutants.toml ../mutants.sqlite; \
	$$tools/cr-filter-operators ../mutants.sqlite ../mutants.toml; \
	$$tools/cosmic-ray exec ../mutants.toml ../mutants.sqlite; \
	$$tools/cr-report --surviving-only --show-diff ../mutants.sqlite > ../mutants.txt
	@$(BIN)/python -c 'import sqlite3; \
		ask = "select count(*), coalesce(sum(test_outcome = \"KILLED\"), 0) from work_results where worker_outcome = \"NORMAL\""; \
		all, killed = sqlite3.connect("build/mutants.sqlite").execute(ask).fetchone(); \
		print(f"{killed} of {all} mutants killed, {killed / max(all, 1):.1%}; build/mutants.txt has the others")'

faults: $(INSTALLED_DEV) ## Kill, cut, fill and stop real runs, and write the table (root, half an hour; docs/notes/reliability.md).
	$(BIN)/python -m studies.faults run; status=$$?; $(BIN)/python -m studies.faults table && exit $$status

audit: $(INSTALLED_TOOLS) ## Look up the pinned packages among the known vulnerabilities.
	@status=0; for file in $(wildcard $(ROLES:%=%/requirements*.txt)); do \
		echo $$file; \
		$(TOOLS)/bin/pip-audit --requirement $$file --no-deps --disable-pip --strict $(AUDIT_FLAGS) || status=$$?; \
	done; exit $$status

sbom: $(INSTALLED_TOOLS) ## Write bills of materials, build/sbom-ROLE.json, in the format CycloneDX.
	@for role in $(ROLES); do \
		PYTHONWARNINGS=ignore $(TOOLS)/bin/cyclonedx-py requirements $$role/requirements.txt --pyproject pyproject.toml \
			--output-reproducible --output-format JSON --output-file build/sbom-$$role.json || exit; \
		echo build/sbom-$$role.json; \
	done

hashes: $(INSTALLED_TOOLS) ## Write build/requirements-ROLE.txt: the pins with the hash of every file.
	@for role in $(ROLES); do \
		$(TOOLS)/bin/uv pip compile --quiet --no-config --universal --no-deps --no-annotate --no-header --generate-hashes \
			--python-version 3.11 $$role/requirements.txt --output-file build/requirements-$$role.txt || exit; \
		echo build/requirements-$$role.txt; \
	done

# Of what is committed: a wheel of a working tree might hold what nobody else has.
release: $(INSTALLED_TOOLS) ## Build dist/: the wheel and the source of a release, checked (docs/notes/releasing.md).
	@test -z "$$(git status --porcelain)" || { echo "there are changes; commit them first: git status" >&2; exit 1; }
	rm -rf dist build/release
	$(PYTHON) deploy/release.py source build/release $(REPOSITORY)
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(TOOLS)/bin/python -m build --outdir dist build/release
	$(TOOLS)/bin/twine check --strict dist/*

tag: ## Commit version VERSION and tag it with its notes, as `make tag VERSION=0.2.0`.
	$(PYTHON) deploy/release.py tag $(VERSION)

pictures: $(INSTALLED_DEV) ## Train LunarLander, and make the pictures in docs/pictures/ of it.
	$(BIN)/python docs/pictures/make.py
	$(BIN)/python docs/pictures/page.py

peers: $(INSTALLED_PEERS) ## Make benchmarks/.venv with the programs that Genkidama is compared with.

clean: ## Delete the environments, caches and builds; runs/ stays.
	rm -rf $(VENV) $(PEERS) build dist *.egg-info .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# $(call make_venv,DIRECTORY)
define make_venv
	@command -v $(PYTHON) > /dev/null || { echo "$(PYTHON): not found; install Python 3.11 or later, or name it: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is $$($(PYTHON) -V 2>&1); Genkidama needs Python 3.11 or later: make PYTHON=python3.12 ..." >&2; exit 1; }
	@test -x $(1)/bin/python || $(PYTHON) -m venv $(1) || { rm -rf $(1); echo "$(PYTHON) -m venv fails; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
endef

$(INSTALLED): pyproject.toml constraints.txt
	$(call make_venv,$(VENV))
	@echo "installing into $(VENV), which takes a minute or more the first time"
	@# Where Box2D has no wheel (64-bit ARM Linux, Python 3.14) it is built from source, with swig from
	@# the virtual environment; pip's isolated builds would not find it. It needs g++ and Python's headers.
	@if $(BIN)/python -c 'import platform as p, sys; sys.exit(not ((p.system(), p.machine()) == ("Linux", "aarch64") or sys.version_info >= (3, 14)))'; then \
		echo "building Box2D, which takes some minutes on a small machine"; \
		$(PIP_INSTALL) swig setuptools && \
		PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP_INSTALL) --no-build-isolation box2d-py==2.3.8; \
	fi
	@$(PIP_INSTALL) -e ".[lander,play,page,figures]"
	@touch $@

$(INSTALLED_SEARCH): $(INSTALLED)
	@$(PIP_INSTALL) -e ".[lander,play,page,figures,search]"
	@touch $@

$(INSTALLED_DEV): $(INSTALLED)
	@$(PIP_INSTALL) -e ".[lander,play,page,search,figures,video,onnx,postgresql,ray,atari,minatar,replay,hub,dev]"
	@touch $@

$(INSTALLED_DEPLOY): $(INSTALLED_DEV)
	@$(PIP_INSTALL) -e ".[lander,play,page,search,figures,video,onnx,postgresql,ray,atari,minatar,replay,hub,dev,deploy]"
	@touch $@

$(INSTALLED_TOOLS): constraints.txt
	$(call make_venv,$(TOOLS))
	@$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) -c constraints.txt \
		pip-audit cyclonedx-bom uv build twine
	@touch $@

$(INSTALLED_PACKAGES): pyproject.toml constraints.txt tests/packages.txt
	$(call make_venv,$(PACKAGES))
	@# torch first, so that what follows takes it as it is.
	@$(PACKAGES)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) -c constraints.txt torch
	@$(PACKAGES)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) -c constraints.txt \
		-r tests/packages.txt -e ".[lander,page]"
	@touch $@

$(INSTALLED_MUTATION): constraints.txt
	$(call make_venv,$(MUTATION))
	@$(MUTATION)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) -c constraints.txt \
		cosmic-ray
	@touch $@

# The extra `docs`, and the package's own light dependencies; the package itself is read where it lies.
$(INSTALLED_DOCS): pyproject.toml constraints.txt
	$(call make_venv,$(DOCS))
	@$(DOCS)/bin/python docs/site/needs.py > $(DOCS)/needs.txt
	@$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) -c constraints.txt \
		-r $(DOCS)/needs.txt
	@touch $@

$(INSTALLED_PEERS): benchmarks/requirements.txt
	$(call make_venv,$(PEERS))
	@echo "installing into $(PEERS), which takes some minutes"
	@# torch first, so that what follows takes it as it is.
	@$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) torch==2.13.0
	@$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) -r benchmarks/requirements.txt
	@touch $@
