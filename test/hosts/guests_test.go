//go:build hosts

package hosts_test

import (
	"slices"
	"time"

	"github.com/gpuslice/gpuslice/test/harness"
)

// The steps that each guest can have.
var (
	demo = step{name: "demo", command: []string{"/srv/bin/demo"}, patience: 30 * time.Minute}
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
	appArmor     = step{name: "apparmor", pkg: inside, patience: 20 * time.Minute, run: "AppArmor$"}
	seLinux      = step{name: "selinux", pkg: inside, patience: 20 * time.Minute, run: "SELinux$"}
	kubelet      = step{name: "kubelet", pkg: inside, patience: 20 * time.Minute, run: "^TestKubelet", kubernetes: true}
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

// inside is the package of tests that run nowhere else.
const inside = "test/hosts/inside"

// core is what each host has to pass.
var core = []step{doctor, demo, wrapper, node, audit}

// guests are the hosts that are tested. Debian 11 is only its kernel: the programs are compiled for a newer C library.
var guests = []guest{
	{name: "debian-11", arch: "amd64", distribution: "bookworm", kernel: "bullseye", release: "5.10.", cgroup: 2, driver: "cgroupfs", module: "apparmor", steps: core},
	{name: "debian-12", arch: "amd64", distribution: "bookworm", kernel: "bookworm", release: "6.1.", cgroup: 2, driver: "cgroupfs", module: "apparmor", steps: core},
	{name: "debian-12-systemd", arch: "amd64", distribution: "bookworm", kernel: "bookworm", release: "6.1.", cgroup: 2, driver: "systemd", module: "apparmor", steps: core},
	{name: "debian-12-v1", arch: "amd64", distribution: "bookworm", kernel: "bookworm", release: "6.1.", cgroup: 1, driver: "cgroupfs", module: "apparmor", steps: core},
	{name: "debian-13", arch: "amd64", distribution: "trixie", kernel: "trixie", release: "6.12.", cgroup: 2, driver: "systemd", module: "apparmor", steps: slices.Concat(core, []step{kubelet, appArmor, remapped})},
	{name: "debian-13-cgroupfs", arch: "amd64", distribution: "trixie", kernel: "trixie", release: "6.12.", cgroup: 2, driver: "cgroupfs", module: "apparmor", steps: core},
	{name: "debian-13-selinux", arch: "amd64", distribution: "trixie", kernel: "trixie", release: "6.12.", cgroup: 2, driver: "cgroupfs", module: "selinux", steps: []step{doctor, demo, seLinux}},
	{name: "debian-13-backports", arch: "amd64", distribution: "trixie", kernel: "trixie-backports", cgroup: 2, driver: "systemd", module: "apparmor", steps: core},
	{name: "arm64-debian-12", arch: "arm64", distribution: "bookworm", kernel: "bookworm", release: "6.1.", cgroup: 2, driver: "cgroupfs", module: "apparmor", steps: []step{doctor, demo, layout, node, audit}},
	{name: "arm64-debian-13-backports", arch: "arm64", distribution: "trixie", kernel: "trixie-backports", cgroup: 2, driver: "systemd", module: "apparmor", steps: []step{doctor, demo, layout, node, audit}},
	{name: "arm64-suites", arch: "arm64", distribution: "bookworm", kernel: "bookworm", release: "6.1.", cgroup: 2, driver: "cgroupfs", module: "apparmor", steps: []step{simulator, limiterSuite, limiterTime, nodeWhole, wrapperWhole}},
}

// computeTime selects the tests of test/limiter that play with shares of compute time.
const computeTime = "^Test(Played|Share|Policies|NoStall)"

// env is for all steps of a guest.
func (g guest) env() []string {
	return []string{
		harness.SlownessEnv + "=20", // QEMU emulates the processor
		harness.CgroupDriverEnv + "=" + g.driver,
	}
}

// arguments are for the kernel's command line.
func (g guest) arguments() string {
	line := "systemd.unified_cgroup_hierarchy=1"
	if g.cgroup == 1 {
		line = "systemd.unified_cgroup_hierarchy=0"
	}
	line += " security=" + g.module
	if g.module == "selinux" {
		line += " selinux=1 enforcing=1"
	}
	return line
}

// root are the arguments of guests.sh for the guest's file system.
func (g guest) root() []string {
	if g.module == "selinux" {
		return []string{g.arch, g.distribution, g.module}
	}
	return []string{g.arch, g.distribution}
}
