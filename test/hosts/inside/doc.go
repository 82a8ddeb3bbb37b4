// Package inside tests what only a guest of test/hosts can: a kubelet at its own paths, and security modules, which are the
// kernel's. Its tests use /var/lib/kubelet and the root of the control groups. No package imports it.
package inside
