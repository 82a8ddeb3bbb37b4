// Package cdihook implements hooks of CDI specs of NVIDIA's driver, for nodes without nvidia-cdi-hook.
//
//	create-symlinks --link TARGET::LINK …
//	update-ldcache --folder DIR …
//	chmod --path PATH … --mode OCTAL
//
// They run in the host's root, with the container's state on stdin. The image's author controls the
// container's root, so every path is resolved inside it (openat2 with RESOLVE_IN_ROOT), and ldconfig runs in a
// jail (jail.go). Unknown hooks and flags are skipped, because specs can be newer. gpuslice-runtime calls it.
package cdihook
