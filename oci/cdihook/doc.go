// Package cdihook has the hooks of CDI specs of NVIDIA's driver, for nodes without nvidia-cdi-hook:
//
//	create-symlinks --link TARGET::LINK …       like ln -sf in the container
//	update-ldcache --folder DIR …               updates the container's ld.so.cache
//	chmod --path PATH … --mode OCTAL            permissions of directories
//
// Names and flags are those of NVIDIA's program. The hooks are createContainer hooks: a runtime runs
// them in the host's root, with the container's state on stdin (runtime-spec, "State").
//
// The image's author controls the container's root, so every path is resolved inside it
// (pathrs-lite, openat2 with RESOLVE_IN_ROOT). The host's ldconfig does not do that: a copy of it
// runs in a jail (jail.go).
//
// Unknown hooks and flags cause only a warning, because specs can be newer than this program. An
// error refuses the container, except in a read-only root: the GPUs work without links.
package cdihook
