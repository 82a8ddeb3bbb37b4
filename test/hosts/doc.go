// Package hosts runs the demo, and the suites that matter most on another host, in virtual machines of Debian: other
// kernels, cgroup versions and architectures. QEMU emulates them, without KVM. guests.sh makes their disks, runner runs the
// steps in them, and inside has tests that run nowhere else. No package imports it; it is run by `make test-hosts`, and
// docs/measurements has what came out.
package hosts
