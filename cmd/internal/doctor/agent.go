package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// A state directory with less than this left will soon refuse containers.
const (
	littleBytes  = 64 << 20
	littleInodes = 1000
)

// StateMountUnit is where systemd has the unit of the tmpfs, and StateMountDir is the
// directory that the unit is of.
const (
	StateMountUnit = "/etc/systemd/system/run-gpuslice.mount"
	StateMountDir  = "/run/gpuslice"
)

// stateMount is how the state directory becomes a tmpfs of its own.
var stateMount = []string{
	"on a node without GPU containers (the ledger of those that run would be hidden):",
	"  cp install/run-gpuslice.mount /etc/systemd/system/",
	"  systemctl daemon-reload && systemctl enable --now run-gpuslice.mount",
}

func checkStateDir(_ context.Context, e *exam, v *verdict) {
	dir := e.o.StateDir
	info, err := e.stat(dir)
	if err != nil {
		v.fail(oneLine(err), append([]string{"the agent makes it at its start; let it be a tmpfs of its own first,"}, stateMount...)...)
		return
	}
	f, err := e.Filesystem(dir)
	if err != nil {
		v.fail(oneLine(err), "run gpuslice doctor as root")
		return
	}
	isOwn := true
	if f.Type != unix.TMPFS_MAGIC && f.Type != unix.RAMFS_MAGIC {
		isOwn = false
		v.warn(dir+" is not on a tmpfs: every container's creation waits for a disk", stateMount...)
	} else if sameFilesystem(e, dir, path.Dir(dir)) {
		isOwn = false
		v.warn(dir+" shares a tmpfs with "+path.Dir(dir)+": a tenant that fills its usage file fills that too, for the whole node", stateMount...)
	} else {
		v.ok(dir + " is a tmpfs of its own")
	}
	if !isOwn && dir == StateMountDir && !e.exists(StateMountUnit) {
		v.repair(RepairStateMount)
	}
	mode := info.Mode().Perm()
	if mode&0o022 != 0 {
		v.fail(fmt.Sprintf("others may write into it (mode %#o)", mode), "chmod 0711 "+dir)
	} else if mode&0o044 != 0 {
		v.warn(fmt.Sprintf("others may list it (mode %#o)", mode), "chmod 0711 "+dir)
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	isOthers := ok && owner.Uid != 0
	if isOthers {
		v.fail(fmt.Sprintf("it belongs to user %d", owner.Uid), "chown root: "+dir)
	}
	if mode&0o066 != 0 || isOthers {
		v.repair(RepairStateDirMode)
	}
	switch left := fmt.Sprintf("%d MiB and %d inodes are free", f.FreeBytes>>20, f.FreeInodes); {
	case f.FreeBytes == 0 || f.FreeInodes == 0:
		v.fail(left+": no container can be granted a GPU", "mount -o remount,size=1G,nr_inodes=64k "+dir)
	case f.FreeBytes < littleBytes || f.FreeInodes < littleInodes:
		v.warn(left, "mount -o remount,size=1G,nr_inodes=64k "+dir)
	default:
		v.ok(left)
	}
}

// sameFilesystem says whether two directories are known to be on one file system.
func sameFilesystem(e *exam, a, b string) bool {
	deviceA, knownA := device(e, a)
	deviceB, knownB := device(e, b)
	return knownA && knownB && deviceA == deviceB
}

func device(e *exam, path string) (uint64, bool) {
	info, err := e.stat(path)
	if err != nil {
		return 0, false
	}
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return s.Dev, true
}

func checkLibraryDir(_ context.Context, e *exam, v *verdict) {
	dir := e.o.LibraryDir
	f, err := e.Filesystem(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		v.fail(dir+" is not there", "start gpuslice-agent, which makes it, or name its --library-dir")
		return
	case err != nil:
		v.fail(oneLine(err), "run gpuslice doctor as root")
		return
	case f.NoExec:
		v.fail(dir+" is on a noexec mount: containers can't load the limiter from it", "mount -o remount,exec  the file system, or give the agent another --library-dir")
	}
	libraries, _ := fs.Glob(e.Host, name(dir)+"/libvgpu-*.so")        // the pattern is right
	libraries = slices.DeleteFunc(libraries, func(file string) bool { // the fronts of mode library
		return strings.Count(path.Base(file), "-") > 1
	})
	if len(libraries) == 0 || !e.exists(path.Join(dir, "ld.so.preload")) {
		v.fail(dir+" has no limiter", "start gpuslice-agent, which installs it (--library)")
		return
	}
	if len(v.found) == 0 {
		v.ok(dir + " has " + path.Base(libraries[len(libraries)-1]))
	}
}
