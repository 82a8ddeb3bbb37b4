//go:build hosts

package hosts_test

import (
	"time"

	"github.com/gpuslice/gpuslice/test/harness"
)

// The steps that each guest can have.
var (
	demo = step{name: "demo", command: []string{"/srv/bin/demo"}, patience: 10 * time.Minute}
	// node is what an agent is for: a grant and a refusal, what is seen from inside, the agent and containerd killed and
	// restarted, and nothing left.
	node = step{name: "node", pkg: "test/node", patience: time.Hour,
		run: "^(TestTwoContainersShareAGPU|TestWithoutAGrantThereIsNoGPU|TestAgentRestart|TestContainerdRestart|TestAgentThatIsNotThere|TestLimitHoldsHoweverTheContainerIsMade)$"}
	// audit finds processes by their cgroups.
	audit = step{name: "audit", pkg: "test/node", patience: time.Hour, run: "^TestAudit$"}
	// wrapper is docker with the guest's daemon, and a resize.
	wrapper = step{name: "docker", pkg: "test/docker", patience: time.Hour, run: "^(TestDocker|TestCtr)$",
		skip: "TestDocker/(32_at_once|no_kill_loses_anything)"}
	remapped     = step{name: "docker-userns", pkg: "test/docker", patience: 10 * time.Minute, run: "^TestDockerUserNamespaces$"}
	nodeWhole    = step{name: "node-whole", pkg: "test/node", patience: 2 * time.Hour}
	wrapperWhole = step{name: "docker-whole", pkg: "test/docker", patience: 2 * time.Hour, skip: "Podman"}
	layout       = step{name: "layout", pkg: "limiter", patience: 10 * time.Minute}
	simulator    = step{name: "simdriver", pkg: "test/simdriver", patience: time.Hour}
	limiterSuite = step{name: "limiter", pkg: "test/limiter", patience: 2 * time.Hour, skip: computeTime}
	limiterTime  = step{name: "limiter-time", pkg: "test/limiter", patience: 2 * time.Hour, run: computeTime}
	doctor       = step{name: "doctor", patience: time.Minute, command: []string{"/bin/sh", "-c",
		// Without a GPU and an agent it fails; what it reports of the host is right all the same.
		`if build/bin/gpuslice doctor >doctor.txt; then echo "no GPU was missed"; exit 1; fi; cat doctor.txt
		version=$(test -e /sys/fs/cgroup/cgroup.controllers && echo 2 || echo 1); grep -q "cgroup .*version $version" doctor.txt`}}
)

var guests = []guest{
	{name: "amd64-6.1", arch: "amd64", root: "bookworm", kernel: "bookworm", marked: true, steps: []step{demo, doctor, wrapper, node, audit}},
	{name: "arm64-6.1", arch: "arm64", root: "bookworm", kernel: "bookworm", marked: true, steps: []step{demo, doctor, layout, node, audit}},
	{name: "arm64-6.1-suites", arch: "arm64", root: "bookworm", kernel: "bookworm", steps: []step{simulator, limiterSuite, limiterTime, nodeWhole, wrapperWhole}},
	{name: "amd64-6.1-systemd", arch: "amd64", root: "bookworm", kernel: "bookworm", env: systemd, steps: []step{demo, wrapper, node, audit}},
	{name: "amd64-6.1-v1", arch: "amd64", root: "bookworm", kernel: "bookworm", append: "systemd.unified_cgroup_hierarchy=0", steps: []step{demo, doctor, wrapper, node, audit}},
	{name: "amd64-6.1-userns", arch: "amd64", root: "bookworm", kernel: "bookworm", steps: []step{remapped}},
	{name: "amd64-5.10", arch: "amd64", root: "bookworm", kernel: "bullseye", steps: []step{demo, doctor, wrapper, node, audit}},
	{name: "amd64-6.12", arch: "amd64", root: "trixie", kernel: "trixie", steps: []step{demo, doctor, wrapper, node, audit}},
	{name: "amd64-backports", arch: "amd64", root: "trixie", kernel: "trixie-backports", env: systemd, steps: []step{demo, doctor, wrapper, node, audit}},
	{name: "arm64-6.12", arch: "arm64", root: "trixie", kernel: "trixie", steps: []step{demo, doctor, layout, node, audit}},
}

// computeTime selects the tests of test/limiter that play with shares of compute time.
const computeTime = "^Test(Played|Share|Policies|NoStall)"

// slow: QEMU emulates the processor.
var slow = harness.SlownessEnv + "=20"

// systemd makes the containers' cgroups.
var systemd = []string{harness.CgroupDriverEnv + "=systemd"}
