// Package cdihook has the hooks that CDI specs of NVIDIA's driver name, for nodes
// without NVIDIA's nvidia-cdi-hook:
//
//	create-symlinks --link TARGET::LINK …       like ln -sf inside the container
//	update-ldcache --folder DIR …            the container's ld.so.cache again
//	chmod --path PATH … --mode OCTAL            permissions of directories
//
// Names and flags are those of NVIDIA's program, so that a spec works with either.
// The hooks are createContainer hooks: a runtime calls them before it changes to the
// container's root, with the container's state on stdin (runtime-spec, "State").
// What they change is in the container's root alone, which an image's author filled.
// Every path of ours is resolved inside it, links too (pathrs-lite, openat2 with
// RESOLVE_IN_ROOT). The host's ldconfig knows no such thing, and runs in a jail (jail.go):
// a copy of it, with the container's root and without any procfs, whose links lead out
// of a changed root.
//
// A hook or a flag that is not known is warned of and does no harm, for specs may be
// newer than this program. What can't be done is an error, and refuses the container;
// except where the container's root can't be written: the GPUs work without links,
// and its programs say so themselves where they don't.
//
// It imports nothing of ours. Command gpuslice-runtime calls [Main] for its command
// "cdi-hook".
package cdihook
