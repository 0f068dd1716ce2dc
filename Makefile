# sconce: build, test and measure. `make help` lists the targets.

VERSION ?= $(shell scripts/version.sh)
LDFLAGS := -s -w -X sconce.dev/sconce/internal/cli.version=$(VERSION)
GO      ?= go
export PATH := $(CURDIR)/.tools/bin:$(PATH)
# For all that compiles, so that what one target has compiled is there for the next.
export GOFLAGS := -trimpath -buildvcs=false $(GOFLAGS)

# make test PACKAGES=./internal/store TESTFLAGS=-v; -short leaves out what takes long. What the tests need is installed first; from
# then on, a tool that is missing fails a test. Plain `go test` leaves out tests whose tools are not there.
# The two that wait most, for mirrors and other programs, come first, so that others compute beside them.
PACKAGES  ?= ./test ./internal/wheelbuild ./...
TESTFLAGS ?=

# Without what debuggers need, which takes a third of the time to link; vet is a part of make lint. A program with the race detector sleeps
# for a second before it ends, in case a goroutine races meanwhile, and tests start many. Without it tests are made without cgo, as sconce
# is: what make build compiles is there for the tests.
GORACE    ?= atexit_sleep_ms=0
RUN        = SCONCE_REQUIRE_TOOLS=1 CGO_ENABLED=0 scripts/test.sh
RUN_RACE   = SCONCE_REQUIRE_TOOLS=1 CGO_ENABLED=1 GORACE='$(GORACE)' scripts/test.sh
# With the detector much of the time would go to a compressor in which no goroutine is started: that is left without it. What it is given is
# watched all the same: internal/layer tells the detector what is read, the sum of zlib reads what squashfs gives it, and both writers are seen.
RACE       = -race -short -gcflags=github.com/klauspost/compress/flate=-race=false
FLAGS      = -vet=off -ldflags=-w -timeout 80m $(TESTFLAGS)

.PHONY: help build cross test test-stack race rest fuzz lint format setup demo bench bench-builds bench-containerfile bench-files bench-conda bench-scale bench-facts bench-start bench-gpu release clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 21

build: ## build bin/sconce, a static file
	CGO_ENABLED=0 $(GO) build -ldflags '$(LDFLAGS)' -o bin/sconce ./cmd/sconce

ARCHITECTURES ?= amd64 arm64

# The tests compile for arm64 as well, and vet looks at what differs there; make test and make lint look at all else.
cross: ## build for both architectures
	for a in $(ARCHITECTURES); do \
		GOOS=linux GOARCH=$$a CGO_ENABLED=0 $(GO) build -ldflags '$(LDFLAGS)' -o bin/sconce-linux-$$a ./cmd/sconce || exit; \
	done
	GOOS=linux GOARCH=arm64 CGO_ENABLED=0 $(GO) vet -asmdecl -buildtag -shift -unsafeptr ./...

test: ## install what the tests need (on Debian), and run them all
	scripts/setup.sh tests
	$(RUN) test $(FLAGS) $(PACKAGES)

test-stack: ## compile examples/hpc-stack/debian, and run its tests on a Slurm of two nodes: half an hour
	scripts/setup.sh tests
	SCONCE_REQUIRE_TOOLS=1 SCONCE_TEST_STACK=1 $(GO) test -count=1 -vet=off -v -timeout 3h -run TestStackFromSources ./test

# The race detector has nothing to say where one goroutine runs. Packages: one more at a time than there are processors, as one mostly waits.
race: PACKAGES = $(shell scripts/concurrent.sh)
race: ## run the quick tests with the race detector
	scripts/setup.sh tests
	$(RUN_RACE) race -p $$(($$(nproc) + 1)) $(RACE) $(FLAGS) $(PACKAGES)

# Both at once: ./test waits for mirrors and other programs longer than all else computes.
rest: ## run the tests that make race has left out, after it: both are make test
	scripts/setup.sh tests
	$(RUN) rest $(FLAGS) $(shell scripts/concurrent.sh rest) & rest=$$!; \
	$(RUN) left -p 1 -run "$$(scripts/left.sh tests)" $(FLAGS) $$(scripts/left.sh packages); left=$$?; wait $$rest && exit $$left

fuzz: ## run each fuzz target for a few seconds
	scripts/fuzz.sh

# Without cgo, as all else is: what the linter has compiled is there for the tests.
lint: ## check style, directions of imports, format
	scripts/setup.sh lint
	CGO_ENABLED=0 golangci-lint run ./...

format: ## format the code
	scripts/setup.sh format
	gofumpt -w cmd internal test

setup: ## install what make test and make lint need, and no more
	scripts/setup.sh

demo: bin/sconce ## build and run an image with PyTorch
	scripts/demo.sh

# For make demo, which finds in less than a second that there is nothing to do: go build alone takes longer to find out.
bin/sconce: VERSION $(shell find cmd internal -type f -not -name '*_test.go') go.mod go.sum
	$(MAKE) build

bench: bench-builds bench-containerfile bench-files ## measure sconce and its peers in one run

bench-builds: build ## builds, on the same packages
	. scripts/tools.sh && need_debian mmdebstrap mmdebstrap && need_debian buildah buildah && need_debian skopeo skopeo \
		&& need_debian zstd zstd && need_uv && bench/run.sh

bench-containerfile: build ## a Containerfile, as an ordinary user
	. scripts/tools.sh && need_debian mmdebstrap mmdebstrap && need_debian buildah buildah && need_debian newuidmap uidmap \
		&& bench/containerfile/run.sh

bench-files: build ## squashfs files of one image
	. scripts/tools.sh && need_debian mmdebstrap mmdebstrap && need_debian buildah buildah && need_debian umoci umoci \
		&& need_debian mksquashfs squashfs-tools && need_debian tar2sqfs squashfs-tools-ng && need_debian squashfuse_ll squashfuse \
		&& bench/clusterfile/run.sh

bench-conda: build ## a conda environment to a SIF file
	. scripts/tools.sh && need_debian busybox busybox-static && need_debian mksquashfs squashfs-tools && need_debian zstd zstd && need_uv \
		&& bench/conda/run.sh

# make bench-scale SIZE=10 makes an image of 10 GB of this machine's files.
SIZE ?= 4

bench-scale: build ## the same on 1, 2, 4, ... cores
	. scripts/tools.sh && need_debian mksquashfs squashfs-tools && python3 -B bench/scale/bench.py --size $(SIZE)

# make bench-facts FACTS_SIZE=5 makes an image of 5 GB.
FACTS_SIZE ?= 20

bench-facts: build ## a check of a large image in a registry, by signed facts and by its layers
	. scripts/tools.sh && need_debian docker-registry docker-registry && need_debian openssl openssl && python3 -B bench/facts/bench.py --size $(FACTS_SIZE)

# make bench-start IMAGE=pytorch:1 START="python3 -c 'import torch'", as root.
bench-start: build ## a start of an image from a file on a slow disk, with and without --start
	. scripts/tools.sh && need_debian mksquashfs squashfs-tools && bench/start/run.sh "$(IMAGE)" "$(START)"

# make bench-gpu RESULTS=DIR; the log says which GPUs, driver and libraries were there.
RESULTS ?= bench/out/gpu

bench-gpu: build ## the proof on a GPU: device code read, an image slimmed, operations bit for bit
	bench/gpu/run.sh bin/sconce $(RESULTS)

release: ## make binaries, archives, packages and checksums below dist/
	scripts/release.sh '$(VERSION)'

clean: ## remove what was built here; the store stays
	rm -rf bin dist
