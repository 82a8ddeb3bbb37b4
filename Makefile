# gpuslice. `make help` lists the targets.
SHELL       := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# ARCH is arm64 or amd64: another one than this machine's is built into a directory of its own. The environment of a user
# can have an ARCH that is meant for something else.
ifneq ($(origin ARCH),command line)
override undefine ARCH
endif
ifneq ($(ARCH),$(filter amd64 arm64,$(firstword $(ARCH))))
$(error ARCH=$(ARCH): there are amd64 and arm64)
endif
CROSS := $(if $(ARCH),$(filter-out $(shell go env GOHOSTARCH),$(ARCH)))
BUILD := $(CURDIR)/build$(CROSS:%=/%)
# nri_no_wasm drops the WebAssembly engine that NRI can carry; gpuslice runs no wasm plugins. root adds the tests that need
# root, a daemon, or a program that `make check` does without. All commands have the same flags, so that nothing is
# compiled twice.
TAGS := nri_no_wasm,root
export GOFLAGS := -tags=$(TAGS) -buildvcs=false -trimpath
# go-nvml declares every function of NVML, the deprecated ones too.
export CGO_CFLAGS := -g -O2 -Wno-deprecated-declarations
ifneq ($(CROSS),)
export CC := $(shell test/hosts/guests.sh compiler $(CROSS))
export GOARCH := $(CROSS)
export CGO_ENABLED := 1
# Before commands that run on this machine.
HERE := env -u GOARCH -u CGO_ENABLED -u CC -- 
endif
SHELL_SCRIPTS = $(shell git ls-files '*.sh') .ci/run

.PHONY: help setup setup-demo setup-tests setup-check build compiler binaries native scheduler image notices plugins release manifests demo demo-root demo-run demo-keep demo-stop check test suites suites-raced test-faults test-attacks test-chaos test-chaos-short test-steps test-clients test-karpenter test-kueue test-runtimes test-runtimes-short test-hosts test-arm64 e2e e2e-framework e2e-extender e2e-versions e2e-admission e2e-oldest e2e-nodes soak gpu-test gpu-bundle bench bench-scheduler fuzz vulncheck lint generate man screenshots clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: # what the tests need is there, and containerd and linters are built once
	@test/setup.sh

setup-demo:
	@test/setup.sh --demo

setup-tests: ## Install the Debian packages that the tests need, as root; none is removed, and no service is started
	@test/setup.sh --install

setup-check: # what `make check` needs: compilers and linters
	@test/setup.sh --check

build: binaries scheduler ## Build the binaries, the limiter and the simulated driver into build/ (ARCH=arm64: for another architecture, into build/arm64)

compiler: # the cross compiler, where one is needed
	@test -z "$(CROSS)" || command -v "$(CC)" >/dev/null || test/hosts/guests.sh programs

# The version is the tag. Before the first tag it is the chart's, which is the next one.
CHART_VERSION := $(shell sed -n 's/^version: //p' install/charts/gpuslice/Chart.yaml)
REVISION = $(shell git rev-parse HEAD 2>/dev/null)
VERSION ?= $(or $(shell git describe --tags --match 'v[0-9]*' --dirty 2>/dev/null),v$(CHART_VERSION)-dev+g$(shell git describe --always --exclude '*' --dirty 2>/dev/null))
STAMPED = -X github.com/gpuslice/gpuslice/cmd/internal/version.version=$(VERSION)
STAMP = -ldflags "$(STAMPED)"

binaries: native # all but the scheduler, which takes minutes the first time
	go build $(STAMP) -o $(BUILD)/bin/ $$(go list ./cmd/... | grep -vE '/(gpuslice-runtime|kubectl-gpuslice)$$')
	CGO_ENABLED=0 go build $(STAMP) -o $(BUILD)/bin/ ./cmd/gpuslice-runtime # no loader: it is run as root in containers
	CGO_ENABLED=0 go build -ldflags "-s -w $(STAMPED)" -o $(BUILD)/bin/ ./cmd/kubectl-gpuslice

# A separate module, because only it imports k8s.io/kubernetes. Its tests run without the race detector, so that Kubernetes
# is compiled once (minutes, the first time). The main module tests our packages with it.
SCHEDULER := go -C cmd/gpuslice-scheduler
KUBERNETES := $(shell sed -n 's/^\tk8s.io\/kubernetes //p' cmd/gpuslice-scheduler/go.mod)

scheduler: compiler
	$(SCHEDULER) build -ldflags "$(STAMPED) -X k8s.io/component-base/version.gitVersion=$(KUBERNETES)" -o $(BUILD)/bin/gpuslice-scheduler .

plugins: ## Build kubectl-gpuslice for Linux, macOS and Windows on amd64 and arm64 into build/plugins, each 40 MB at most
	go test -tags $(TAGS),plugins -count=1 -timeout 60m -run '^TestPrograms$$' ./cmd/kubectl-gpuslice -plugins=$(BUILD)/plugins -version=$(VERSION)

native: compiler
	@for dir in limiter/src limiter/front limiter/probe testdata/simdriver testdata/workloads; do \
	  $(MAKE) --no-print-directory -j "$$(nproc)" -C $$dir OUT=$(BUILD); done

notices: # the licences of the modules in the programs, which the image and each package have to contain
	$(HERE)go test -count=1 ./test/licences -run '^TestNotices$$' -notices=$(CURDIR)/build/THIRD-PARTY-NOTICES

image: build notices ## Build the container image of build/: build/image/gpuslice.tar, and root/ for install/image/Dockerfile (ARCH as for build)
	$(HERE)go -C install/image run . -repository $(CURDIR) -name gpuslice:$(CHART_VERSION) \
	  -version $(VERSION) -revision "$(REVISION)" $(CROSS:%=-arch % -libraries "$$($(CC) -print-file-name=libc.so.6 | xargs dirname)")

# Without a registry; docs/RELEASING.md has the rest. The commit's date is that of all files.
IMAGE ?= gpuslice
release: man notices plugins ## Make the files of a release in build/release/: packages, archives, image, chart, SBOMs, provenance, checksums (IMAGE=registry/name)
	@for arch in amd64 arm64; do $(MAKE) --no-print-directory image ARCH=$$arch VERSION=$(VERSION); done
	go -C install/release run . -repository $(CURDIR) -version $(VERSION) -revision "$(REVISION)" -image $(IMAGE) \
	  -date "$$(git log -1 --format=%ct)"

manifests: ## Write the chart's objects as one plain file: build/manifests/gpuslice.yaml (MANIFESTS_ARGS are helm's)
	@test/setup.sh --helm
	@mkdir -p $(BUILD)/manifests
	"$$(test/setup.sh --where-helm)/helm" template gpuslice install/charts/gpuslice --namespace gpuslice-system --kube-version 1.36 \
	  $(MANIFESTS_ARGS) >$(BUILD)/manifests/gpuslice.yaml

demo: demo-$(or $(DEMO),run) ## Show containers that share one simulated GPU on a real containerd, each within its limits (DEMO=keep: and leave the node up; DEMO=stop: take it down)

demo-root: # before the build, which takes minutes
	@test "$$(id -u)" = 0 || { echo "make demo: root is needed: a real containerd creates containers, with mounts and control groups" >&2; exit 1; }

demo-run: demo-root setup-demo binaries
	go run ./test/demo

demo-keep: demo-root setup-demo binaries
	go run ./test/demo keep

demo-stop: demo-root
	go run ./test/demo stop

# Started by root, the tests have no capabilities: they see what a user sees.
UNPRIVILEGED := $(if $(filter 0,$(shell id -u)),setpriv --bounding-set=-all --inh-caps=-all --no-new-privs)

check: lint build ## Build, lint, and run the tests that need neither root nor a daemon (two minutes)
	$(UNPRIVILEGED) go test -tags nri_no_wasm ./...
	$(UNPRIVILEGED) $(SCHEDULER) test -tags nri_no_wasm ./...

# The suites of test/ run programs that were built: the race detector would see only the test. RACED ones run parts of the
# product in the test too. All wait more than they compute: three at a time, the longest first.
RACED := ./test/limiter ./test/upgrade
SUITES = ./test/node ./test/docker ./test/slice $$(go list ./test/... | grep -vxF "$$(go list $(RACED))")

test: setup lint build notices ## Run every test that belongs to a change (as root; with the race detector and the sanitizers)
	@test/setup.sh --helm
	go test -race -timeout 20m $$(go list ./... | grep -v /gpuslice/test/)
	@$(MAKE) --no-print-directory -j 2 suites suites-raced
	$(SCHEDULER) test -timeout 9m ./...
	cd test/admission && go test -timeout 9m ./...
	cd test/kueue && go test ./...
	@test/setup.sh --monitoring
	cd test/monitoring && go test -timeout 9m ./...
	cd install/image && go test ./...
	cd install/release && go test ./...

suites:
	go test -timeout 30m -p 2 $(SUITES)

suites-raced:
	go test -race -timeout 30m -p 1 $(RACED)

test-faults: setup binaries ## Try to get a GPU without a grant while components fail: all faults on a real containerd (minutes, as root)
	go test -tags $(TAGS),faults -timeout 30m -parallel 4 -v ./test/faults

test-attacks: setup binaries ## Attack the isolation as a hostile tenant, on real containerd and dockerd (10 minutes at most, as root)
	go test -tags $(TAGS),attacks -timeout 20m -v ./test/attacks

# One API server, replicas that are processes, nodes that are objects. ROUNDS plays each scenario so often, however long it takes.
CHAOS := go test -tags $(TAGS),chaos -count=1 -v -timeout 24h ./test/chaos

test-chaos: build ## Freeze, part, kill and delay leaders of the scheduler: no GPU is granted twice, no pod is stuck (10 minutes, as root; ROUNDS=50: an hour)
	@test/setup.sh --kubernetes
	$(CHAOS) -labs=4 $(if $(ROUNDS),-rounds=$(ROUNDS),-rounds=1000 -during=270s) $(CHAOS_ARGS)

# One minute, in `make e2e`.
test-chaos-short:
	$(CHAOS) -run 'TestPlugin/1/(leader_frozen|binding_delayed|pods_refused)|TestExtender/1/leader_frozen' $(CHAOS_ARGS)

test-steps: setup binaries ## Kill a process at every step of the limiter that another process can see (STEPS=instructions: at every instruction)
	VGPU_EVERY_STEP=$(or $(STEPS),stores) go test -count=1 -timeout 5h -v -run TestKilledAtEveryStep ./test/limiter

# Same flags as the binaries and the scheduler, so that no package is compiled twice. With the extender only the tests of its
# decisions run again.
E2E := go test -tags $(TAGS),e2e -count=1 -v -timeout 40m

e2e: setup image ## Install the chart on a real Kubernetes on this machine, and test all of it (20 minutes at most, as root)
	@test/setup.sh --kubernetes
	@test/setup.sh --runtimes
	@$(MAKE) --no-print-directory -j 2 --output-sync=target e2e-framework e2e-extender test-runtimes-short e2e-versions test-chaos-short e2e-admission

# The parts of e2e wait more than they compute: two at a time, the longest first. They build nothing, because another part
# runs.
e2e-versions:
	$(E2E) ./test/versions

e2e-admission:
	cd test/admission && $(E2E) -run TestAPIServer .

# Each has a cluster of its own.
e2e-framework:
	$(E2E) ./test/e2e

e2e-extender:
	$(E2E) -skip 'Cheats|Webhook|Forged|Unscheduled|ByHand|NodeTells|Features|Ephemeral|Shared|ContainerThat|Resize|Migration|Upgrade|Uninstall|CommandsOf|AuditKills|Doctor|QuotaPool|Discovery|Verify|GroupPreemption|ResourceClaims' ./test/e2e -component=extender

# What that Kubernetes lacks is in test/kube/version.go.
e2e-oldest: setup image ## Run e2e's tests with plugin and extender on the oldest supported Kubernetes (30 minutes, as root; builds it the first time: ten minutes)
	@test/setup.sh --kubernetes-oldest
	@GPUSLICE_TEST_KUBERNETES=oldest $(MAKE) --no-print-directory -j 2 --output-sync=target e2e-framework e2e-extender

e2e-nodes: setup image ## Add a second node to a real Kubernetes: groups, node policies, a drain, XIDs, MIG devices, a node without an agent, the quick start beside a node without GPUs (five minutes, as root)
	@test/setup.sh --kubernetes
	$(E2E) -tags $(TAGS),e2e,nodes -run '^(TestSecondNode|TestQuickStartBesideACPUNode)$$' ./test/e2e

# The short form of the node's part is in `make test`.
soak: setup image ## Create and delete 10,000 containers of a node and 1,000 pods of a cluster while all programs are killed (hours, as root)
	go test -count=1 -v -timeout 1h ./test/node -run TestManyContainers -lifecycles=1000
	go test -count=1 -v -timeout 24h ./test/soak -lifecycles=10000 $(SOAK_ARGS)
	@test/setup.sh --kubernetes
	$(E2E) -tags $(TAGS),e2e,soak -timeout 24h -run 'TestSoak$$' ./test/e2e -soak=1000 $(SOAK_CLUSTER_ARGS)

test-clients: ## Run programs of Debian and NVIDIA on simulated GPUs, with and without limits (as root; fetches 75 MB the first time; NONFREE=1: and ones that are not free)
	go test -tags $(TAGS),clients -timeout 10m ./test/clients

test-karpenter: ## Run Karpenter's simulation: which nodes pods with shares get (compiles four minutes the first time)
	cd test/karpenter && go vet ./... && go test ./...

test-kueue: setup scheduler ## Run Kueue's controller with the scheduler and the webhook: quotas of jobs with shares (builds Kueue the first time, four minutes)
	@test/setup.sh --kubernetes
	@test/setup.sh --kueue
	cd test/kueue && go vet -tags $(TAGS),kueue . && go test -tags $(TAGS),kueue -count=1 -timeout 30m -v -run TestQueue .

# The short form, in `make e2e`: what an agent is for, and that docs/FAULTS.md's table of supported runtimes is true.
RUNTIMES ?= containerd-1.7 cri-o
RUNTIME_TESTS = ^(TestSupportTableIsTrue|TestTwoContainersShareAGPU|TestWithoutAGrantThereIsNoGPU|TestAgentThatIsNotThere|TestAgentRestart|TestContainerdRestart|TestLostStateDir)$$

test-runtimes: binaries ## Run the demo and the node's tests on containerd 1.7 and CRI-O (as root; builds both the first time: three minutes)
	@test/setup.sh --runtimes
	@for runtime in $(RUNTIMES); do \
	  echo "on $$runtime"; export GPUSLICE_TEST_RUNTIME=$$runtime; \
	  go run ./test/demo && go test -count=1 -timeout 20m ./test/node || exit 1; \
	done

test-runtimes-short:
	@for runtime in $(RUNTIMES); do \
	  echo "on $$runtime"; GPUSLICE_TEST_RUNTIME=$$runtime go test -count=1 -timeout 9m ./test/node -run '$(RUNTIME_TESTS)' || exit 1; \
	done

test-hosts: setup ## Run the demo and the suites in virtual machines: other kernels, cgroup v2, arm64 (GUEST=debian-13: one of test/hosts/guests_test.go)
	go test -tags $(TAGS),hosts -count=1 -v -timeout 24h ./test/hosts -guests='$(or $(GUEST),all)' -steps='$(STEPS)' -tests='$(TESTS)'

# QEMU 7.2 has no openat2, which the commands need.
test-arm64: ## Run the packages' tests for arm64, which QEMU emulates as a processor without a machine (minutes; needs Linux 6.7 and no root)
	@$(MAKE) --no-print-directory binaries ARCH=arm64
	GOARCH=arm64 CGO_ENABLED=1 CC="$$(test/hosts/guests.sh compiler arm64)" go test -tags nri_no_wasm -timeout 30m \
	  -exec '$(CURDIR)/test/hosts/arm64.sh' $$(go list ./... | grep -vE '/gpuslice/(test|cmd)/')

gpu-test: ## Ask this machine's GPU what the simulated one assumes, and run the limiter on it (8 minutes; needs gcc and NVIDIA's driver)
	test/gpu/gpu-test.sh $(GPU_TEST_ARGS)

gpu-bundle: ## Build what gpu-test needs into build/gpu-bundle.tar.gz, for a machine with a GPU, without gcc, Go and network
	rm -rf $(BUILD)/gpu-bundle
	test/gpu/build.sh $(BUILD)/gpu-bundle
	test -x $(BUILD)/gpu-bundle/bin/loop
	cp -r test/gpu/{gpu-test.sh,parts.sh,questions.tsv,standin} test/gpu/*.awk test/gpu/*.py test/gpu/*.cu $(BUILD)/gpu-bundle
	tar -C $(BUILD) -czf $(BUILD)/gpu-bundle.tar.gz --exclude=obj --exclude='*.o' --exclude=__pycache__ gpu-bundle

bench: setup binaries ## Run the benchmarks; ratios come from one run
	go test -run '^$$' -bench . -benchmem ./...

bench-scheduler: setup build ## Bind thousands of pods on a thousand nodes that are objects, at a real API server, with the scheduler as plugin and as extender
	@test/setup.sh --kubernetes
	go run ./test/scale $(SCALE_ARGS)

fuzz: binaries ## Fuzz each decoder of foreign data for FUZZTIME (default 30s)
	test/fuzz.sh $(or $(FUZZTIME),30s)

vulncheck: setup ## Look for known vulnerabilities in what the programs call; only warns if https://vuln.go.dev can't be reached
	test/vulncheck.sh

# All files of all modules.
LINT_TAGS := $(TAGS),faults,attacks,e2e,nodes,soak,clients,hosts,chaos,plugins
MODULES := . cmd/gpuslice-scheduler install/image install/release test/admission test/kueue test/monitoring
C_DIRS := limiter/src limiter/front limiter/probe testdata/simdriver testdata/workloads test/gpu

lint: setup-check ## Check the format and run go vet, staticcheck, shellcheck, actionlint and cppcheck
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo "not formatted:"; gofmt -l $$(git ls-files '*.go'); exit 1; }
	@for module in $(MODULES); do \
	  echo "go vet and staticcheck in $$module"; \
	  (cd $$module && go vet -tags $(LINT_TAGS) ./... && "$$($(CURDIR)/test/setup.sh --where)/staticcheck" -tags $(LINT_TAGS) ./...); \
	done
	shellcheck $(SHELL_SCRIPTS)
	go -C test/tools-actionlint tool actionlint $(CURDIR)/.github/workflows/*.yaml
	@mkdir -p $(BUILD)/cppcheck
	@echo "cppcheck in $(C_DIRS)" # its exit status is 0 for some findings
	@! cppcheck --quiet --std=c11 --enable=warning,performance,portability --inline-suppr -j $$(nproc) \
	  --cppcheck-build-dir=$(BUILD)/cppcheck -D'ElfW(type)=Elf64_##type' $(C_DIRS) 2>&1 | grep .

generate: ## Regenerate golden files from the code (look at the diff)
	go test ./dra/devices ./oci ./oci/runtime ./oci/request ./oci/cdispec ./oci/cdispec/nvdriver ./cmd/internal/doctor ./cmd/gpuslice-agent \
	  ./cmd/internal/cli ./test/layout ./test/licences -update
	@test/setup.sh --helm
	go test ./test/chart -update
	cd test/monitoring && go test . -run TestRunbooksPage -update
	$(SCHEDULER) test . -run TestReference -update

man: ## Write man pages of gpuslice and gpuslice-agent to build/man
	go test -trimpath -count=1 ./cmd/internal/cli ./cmd/gpuslice-agent -run '^TestManPages$$' -man=$(abspath $(BUILD))/man

screenshots: setup ## Take the pictures of the built-in pages in docs/screenshots again
	@test/setup.sh --monitoring
	cd test/monitoring && go test -count=1 -run TestScreenshots ./browser -screenshots

clean: ## Remove what was built
	rm -rf $(BUILD)
