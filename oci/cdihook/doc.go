// Package cdihook has the hooks of CDI specs of NVIDIA's driver, for nodes without nvidia-cdi-hook:
//
//	create-symlinks --link TARGET::LINK …
//	update-ldcache --folder DIR …
//	chmod --path PATH … --mode OCTAL
//
// They are createContainer hooks: they run in the host's root, with the container's state on stdin.
// The image's author controls the container's root, so every path is resolved inside it (pathrs-lite,
// openat2 with RESOLVE_IN_ROOT), and ldconfig runs in a jail (jail.go). Unknown hooks and flags are
// skipped, because specs can be newer. An error refuses the container, except in a read-only root.
package cdihook
