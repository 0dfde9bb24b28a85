# Outlive. `make` lists the targets; docs/how-to/build.md explains them.
# Nothing here needs root; `make deps` installs system packages if it is root
# and says which ones if it is not.

PREFIX ?= /usr/local
# Of `make soak`; make prints it with each command. OUTLIVE_SEED repeats.
SEED := $(or $(OUTLIVE_SEED),$(shell shuf -i 0-99999999 -n 1))
DESTDIR ?=
CARGO ?= cargo
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help deps deps-torch build rust examples python check test test-minickpt soak demo bench book install clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

deps: ## what building and testing needs, into .deps/ and by apt
	@scripts/deps.sh

deps-torch: ## PyTorch for tests/torchrun, which nothing else needs (145 MB to fetch)
	@scripts/deps.sh --torch

build: rust examples ## the command, the C library and the examples, optimised

rust:
	$(CARGO) build --release --locked
	@# Programs ask for the library by its soname, which cargo does not name files by.
	ln -sf liboutlive.so target/release/liboutlive.so.0

examples: rust
	$(MAKE) -C examples

python: deps ## the Python package, into .deps/python
	scripts/python.sh

check: deps ## the quick loop: formatting, lints, unit tests, structure (under 5 minutes)
	scripts/test.sh fmt lint clippy unit histories structure

test: deps ## everything that the continuous integration runs
	scripts/test.sh all

test-minickpt: deps build ## every way for a kernel to die, in emulated machines (about 45 minutes)
	OUTLIVE_MINICKPT=long scripts/test.sh minickpt

soak: deps build ## no false alarm under full load (OUTLIVE_SOAK_MINUTES=20), jobs hurt at random (SOAK_MINUTES=30)
	OUTLIVE_SESSION_SEEDS=$(or $(SESSION_SEEDS),5000) $(CARGO) test --locked -p outlive-network --test session_sim
	scripts/fuzz.sh $(or $(FUZZ_SECONDS),60)
	OUTLIVE_LOSSES=all $(CARGO) test --locked -p outlive-vault -p outlive-simulator --test losses
	OUTLIVE_MATRIX=$(or $(MATRIX),10) $(CARGO) test --release --locked -p outlive-simulator --test matrix
	scripts/sweep-broadcast.sh 100000 $(SEED)
	$(CARGO) run --release --locked -q -p outlive-simulator --example sweep -- $(SEED) $(or $(HISTORIES),100000)
	$(CARGO) run --release --locked -q -p outlive-simulator --example collectives_sweep -- $(SEED) 100000
	$(CARGO) run --release --locked -q -p outlive-simulator --example corrected_sweep -- $(SEED) 100000
	scripts/soak.py --minutes $(or $(SOAK_MINUTES),30) --calm-minutes $(or $(OUTLIVE_SOAK_MINUTES),20)
	OUTLIVE_MPI=long scripts/test.sh mpi
	OUTLIVE_RANKS=long OUTLIVE_LOSSES=all scripts/test.sh e2e
	OUTLIVE_CUTS=50 scripts/test.sh cluster
	OUTLIVE_MINICKPT=soak scripts/test.sh minickpt

demo: deps build ## a node dies without Outlive, then with it
	scripts/demo.sh

bench: build ## what a save, a skipped call and a recovery cost on this machine
	scripts/bench.sh

book: build ## the documentation with its pictures, into docs/book (needs mdbook)
	scripts/pictures.sh
	mdbook build docs

install: ## into PREFIX (default /usr/local)
	DESTDIR="$(DESTDIR)" scripts/install.sh "$(abspath $(PREFIX))"

clean: ## what was built; .deps/ stays
	$(CARGO) clean
	rm -rf build docs/book docs/pictures
