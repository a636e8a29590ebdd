# make demo    train, compare and export a policy in a few minutes
# make demo-live  train a policy and let it balance real Apache servers on this machine; as root
# make test    everything that CI runs: lint, types, native tests, sanitizers, pytest
# make dev     environment, editable install, native tests built        make native  quick rebuild of the extension
# make leaderboard  every policy of the study `leaderboard`, its pages, and the top of it in README.md
# make dataplane  steelyard-lb, the L4 load balancer
# make vpp-plugin  the plugin for VPP; make test-vpp  its tests; both where VPP is installed
# make fast | slow | ctest | sanitize | fuzz | lint | types | format | bench | clean | distclean
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := dev
.DELETE_ON_ERROR:

PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3)
VENV ?= .venv
# For another build of torch, e.g. TORCH_ARGS="--index-url https://download.pytorch.org/whl/cpu".
TORCH_ARGS ?=
JOBS ?= $(shell nproc)

ROOMS := native envs agents trainers deploy benchmarks
BIN := $(VENV)/bin
PY := $(BIN)/python
PIP := $(PY) -m pip --disable-pip-version-check install -qq
EXT_SUFFIX = $(shell $(PY) -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
export PATH := $(abspath $(BIN)):$(PATH)

.PHONY: leaderboard demo demo-live dataplane vpp-plugin test-vpp test dev native native-tests stubs lint types format ctest sanitize fuzz fast slow pytest bench clean distclean
.PHONY: system-build system-live system-test system-wiki

demo: $(VENV)/.runtime
	$(PY) -m steelyard.benchmarks.demo

demo-live: dataplane | system-live
	$(PY) -m steelyard.benchmarks.demo_live

test: dev lint types ctest sanitize dataplane pytest

dev: $(VENV)/.dev native-tests

# --- system packages (Debian): installed as root, otherwise named with the command that installs them ---
define need
missing=(); have() { [[ -n "$$(command -v "$$1")" ]]; }; \
have g++ || missing+=(g++); \
$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv); \
$(PYTHON) -c 'import sysconfig, os, sys; sys.exit(not os.path.exists(sysconfig.get_paths()["include"] + "/Python.h"))' \
  2>/dev/null || missing+=(python3-dev);
endef
define install_missing
if (( $${#missing[@]} )); then \
  if [[ $$(id -u) == 0 && -n "$$(command -v apt-get)" ]]; then \
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$${missing[@]}"; \
  else \
    echo "missing system packages; install them and run make again:"; \
    echo "  sudo apt-get update && sudo apt-get install -y $${missing[*]}"; exit 1; \
  fi; \
fi; \
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=...")'
endef

system-build:
	@$(need) $(install_missing)

# What the balancer is built from, and what the testbed runs. Of Apache the program alone: Debian's package `apache2`
# would also start a service on port 80.
define need_live
[[ -e /usr/include/toml++/toml.h ]] || missing+=(libtomlplusplus-dev); \
[[ -e /usr/include/prometheus/exposer.h ]] || missing+=(prometheus-cpp-dev); \
have ip || missing+=(iproute2); \
have nsenter || missing+=(util-linux); \
[[ -x /usr/sbin/apache2 ]] || missing+=(apache2-bin); \
have ethtool || missing+=(ethtool); \
have curl || missing+=(curl); \
have nft || missing+=(nftables); \
[[ -e /usr/include/xdp/xsk.h ]] || missing+=(libxdp-dev); \
compgen -G '/usr/lib/apache2/modules/libphp*.so' >/dev/null || missing+=(libapache2-mod-php);
endef

system-live:
	@$(need) $(need_live) $(install_missing)

system-test:
	@$(need) $(need_live) \
	[[ -e /usr/include/gtest/gtest.h ]] || missing+=(libgtest-dev); \
	[[ -e /usr/include/benchmark/benchmark.h ]] || missing+=(libbenchmark-dev); \
	$(install_missing)

# What `steelyard testbed up --profile wiki` runs besides; optional, no other target needs it. Of MariaDB the program
# alone; MediaWiki brings the package `apache2`, whose service Debian starts where systemd runs.
define need_wiki
[[ -e /usr/share/mediawiki/index.php ]] || missing+=(mediawiki); \
[[ -x /usr/sbin/mariadbd ]] || missing+=(mariadb-server-core); \
have my_print_defaults || missing+=(mariadb-client-core); \
have php || missing+=(php-cli); \
for name in mysqli:mysql intl:intl mbstring:mbstring dom:xml; do \
  compgen -G "/usr/lib/php/*/$${name%:*}.so" >/dev/null || missing+=("php-$${name#*:}"); \
done;
endef

system-wiki:
	@$(need) $(need_live) $(need_wiki) $(install_missing)

# BenchMARL names two packages that it never imports and that bring CUDA with them: it is installed without what
# it asks for (the extra `benchmarl` holds what it does import), and only these two may be missing.
define pip_check
found=$$($(PY) -m pip --disable-pip-version-check check || true); \
wrong=$$(grep -vE '^(benchmarl [^ ]+ requires (torchvision|av), which is not installed\.|No broken requirements found\.)$$' \
  <<<"$$found" || true); \
if [[ -z "$$found" || -n "$$wrong" ]]; then echo "pip check: $${wrong:-no answer}"; exit 1; fi
endef

# --- environment: one stamp per step, so that nothing is installed twice ---
# The demo needs fewer system packages than the tests; what is missing is named all at once.
$(VENV)/.created: | $(if $(filter demo demo-live dataplane,$(MAKECMDGOALS)),system-build,system-test)
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.torch: constraints.txt | $(VENV)/.created
	@echo "installing torch and the build tools into $(VENV)"
	$(PIP) -c constraints.txt $(TORCH_ARGS) torch
	$(PIP) -c constraints.txt setuptools wheel pybind11 cmake ninja
	touch $@

$(VENV)/.runtime: $(VENV)/.torch pyproject.toml setup.py
	@echo "installing steelyard and what it runs on"
	$(PIP) -c constraints.txt --no-build-isolation -e '.[learn]'
	touch $@

$(VENV)/.dev: $(VENV)/.torch pyproject.toml setup.py | system-test
	@echo "installing steelyard and what it is developed with"
	$(PIP) -c constraints.txt --no-build-isolation -e '.[learn,rllib,wandb,benchmarl,onnx,datasets,dev]'
	$(PIP) -c constraints.txt --no-deps benchmarl
	@$(pip_check)
	touch $@ $(VENV)/.runtime

# --- native code ---
native: | $(VENV)/.torch
	$(PY) setup.py -q build_ext --inplace

dataplane: $(VENV)/.runtime native | system-live
	cmake -S . -B build/cmake-release -DSTEELYARD_DATAPLANE=ON
	cmake --build build/cmake-release --target steelyard-lb -j $(JOBS)

# VPP comes from fd.io's packages (docs/vpp.md), or from STEELYARD_VPP_PREFIX.
VPP_PREFIX := $(or $(STEELYARD_VPP_PREFIX),/usr)
VPP_CONFIG = $(firstword $(wildcard $(VPP_PREFIX)/lib/cmake/vpp/VPPConfig.cmake $(VPP_PREFIX)/lib/*/cmake/vpp/VPPConfig.cmake))
vpp-plugin: | $(VENV)/.torch
	@[[ -n "$(VPP_CONFIG)" ]] || { echo "VPP is not installed: nothing below $(VPP_PREFIX); install vpp-dev from fd.io, or" \
	  "set STEELYARD_VPP_PREFIX (docs/vpp.md)"; exit 1; }
	$(PIP) ply    # of VPP's generator of API headers
	cmake -S . -B build/cmake-vpp -DSTEELYARD_PYTHON=OFF -DSTEELYARD_VPP=ON -DVPP_DIR=$(dir $(VPP_CONFIG)) \
	  -DCMAKE_PREFIX_PATH=$(VPP_PREFIX)
	cmake --build build/cmake-vpp --target steelyard_plugin -j $(JOBS)

test-vpp: vpp-plugin native | $(VENV)/.dev
	$(PIP) vpp-papi
	$(PY) -m pytest -q -rs tests/test_vpp.py tests/test_vpp_table.py tests/test_vpp_policy.py tests/test_vpp_live.py \
	  tests/test_testbed_vpp_live.py

stubs: native | $(VENV)/.dev
	@if [[ ! -e native/_native.pyi || native/_native$(EXT_SUFFIX) -nt native/_native.pyi ]]; then \
	  $(PY) -m pybind11_stubgen --output-dir build/stubs steelyard.native._native && \
	  cp build/stubs/steelyard/native/_native.pyi native/_native.pyi; \
	fi

CMAKE_TESTS := cmake -S . -G Ninja -DSTEELYARD_PYTHON=OFF -DSTEELYARD_TESTS=ON
# The tests are built beside the extension, from the same archives of the core and the simulator.
native-tests: native | $(VENV)/.dev
	cmake -S . -B build/cmake-release -DSTEELYARD_TESTS=ON
	cmake --build build/cmake-release -j $(JOBS)

ctest: native-tests
	ctest --test-dir build/cmake-release --output-on-failure -j $(JOBS)

# Native tests under ASan and UBSan, then the Python tests of the simulator on an extension built the same way: it
# stands in a tree of links, and the interpreter needs the sanitizers' runtime before anything else.
SANITIZE_TESTS := arrivals batch conservation determinism metamorphic rewards rules trace
SANITIZE_TREE := build/ns-sanitize/steelyard
preload = $(shell for lib in asan ubsan stdc++; do g++ -print-file-name=lib$$lib.so; done)
sanitize: native | $(VENV)/.dev
	$(CMAKE_TESTS) -B build/cmake-sanitize -DSTEELYARD_SANITIZE=ON -DSTEELYARD_PYTHON=ON \
	  -DPython_EXECUTABLE=$(abspath $(PY)) -Dpybind11_DIR=$$($(PY) -m pybind11 --cmakedir)
	cmake --build build/cmake-sanitize -j $(JOBS)
	ctest --test-dir build/cmake-sanitize --output-on-failure -j $(JOBS)
	rm -rf $(SANITIZE_TREE) && mkdir -p $(SANITIZE_TREE)/native
	for room in $(filter-out native,$(ROOMS)); do ln -s $(CURDIR)/$$room $(SANITIZE_TREE)/$$room; done
	ln -s $(CURDIR)/native/{__init__.py,build_flags.txt} \
	  $(CURDIR)/build/cmake-sanitize/native/_native$(EXT_SUFFIX) $(SANITIZE_TREE)/native/
	LD_PRELOAD="$(preload)" ASAN_OPTIONS=detect_leaks=0 PYTHONPATH=$(CURDIR)/build/ns-sanitize \
	  $(PY) -m pytest -q -n $(JOBS) -p no:cacheprovider -m 'not slow' $(SANITIZE_TESTS:%=tests/test_%.py)

# libFuzzer instead of our own mutator; needs clang and its runtime (Debian: clang, libclang-rt-14-dev).
fuzz: | $(VENV)/.dev
	CXX=clang++ $(CMAKE_TESTS) -B build/cmake-fuzz -DSTEELYARD_FUZZ=ON
	cmake --build build/cmake-fuzz -j $(JOBS)
	ctest --test-dir build/cmake-fuzz --output-on-failure -R fuzz_

# --- checks ---
NATIVE_SOURCES = $(wildcard native/*/*.h native/*/*.c native/*/*.cc deploy/vpp/*.h deploy/vpp/*.c deploy/vpp/*/*.h deploy/vpp/*/*.cc)
lint: | $(VENV)/.dev
	ruff check .
	ruff format --check .
	clang-format --dry-run -Werror $(NATIVE_SOURCES)

format: | $(VENV)/.dev
	ruff check --fix .
	ruff format .
	clang-format -i $(NATIVE_SOURCES)

# mypy cannot follow the finder of an editable install: it reads the rooms through a tree of links.
types: stubs
	mkdir -p build/ns/steelyard
	for room in $(ROOMS); do ln -sfn $(CURDIR)/$$room build/ns/steelyard/$$room; done
	MYPYPATH=build/ns mypy -p steelyard

fast: native | $(VENV)/.dev
	$(PY) -m pytest -n $(JOBS) --dist worksteal -m 'not slow' tests

slow: native | $(VENV)/.dev
	$(PY) -m pytest -n $(JOBS) --dist worksteal -m slow tests

pytest: native | $(VENV)/.dev
	$(PY) -m pytest -n $(JOBS) --dist worksteal tests

bench: dev
	build/cmake-release/native/tests/steelyard_bench
	steelyard bench

# Trains what is not trained yet (runs/) and goes on where it was stopped; JOBS processes at a time.
leaderboard: native | $(VENV)/.dev
	steelyard study leaderboard --jobs $(JOBS)
	steelyard leaderboard --readme README.md

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -f native/*.so native/_native.pyi native/build_flags.txt
	find $(ROOMS) tests -name __pycache__ -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
