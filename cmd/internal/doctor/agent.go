package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// checkStateDir warns below these amounts of free space.
const (
	littleBytes  = 64 << 20
	littleInodes = 1000
)

// StateMountUnit is the path of the tmpfs' systemd unit, and StateMountDir its mount point.
const (
	StateMountUnit = "/etc/systemd/system/run-gpuslice.mount"
	StateMountDir  = "/run/gpuslice"
)

var stateMount = []string{
	"on a node without GPU containers (the mount would hide their ledger):",
	"  cp install/run-gpuslice.mount /etc/systemd/system/",
	"  systemctl daemon-reload && systemctl enable --now run-gpuslice.mount",
}

func checkStateDir(_ context.Context, e *exam, v *verdict) {
	dir := e.o.StateDir
	info, err := e.stat(dir)
	if err != nil {
		v.fail(oneLine(err), append([]string{"the agent creates it at its start; mount a tmpfs there first,"}, stateMount...)...)
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
		v.warn(dir+" is not on a tmpfs: container creation waits for the disk", stateMount...)
	} else if sameFilesystem(e, dir, path.Dir(dir)) {
		isOwn = false
		v.warn(dir+" is on the tmpfs of "+path.Dir(dir)+": a container that fills its usage file fills it for the whole node", stateMount...)
	} else {
		v.ok(dir + " is a separate tmpfs")
	}
	if !isOwn && dir == StateMountDir && !e.exists(StateMountUnit) {
		v.repair(RepairStateMount)
	}
	mode := info.Mode().Perm()
	if mode&0o022 != 0 {
		v.fail(fmt.Sprintf("writable by other users (mode %#o)", mode), "chmod 0711 "+dir)
	} else if mode&0o044 != 0 {
		v.warn(fmt.Sprintf("readable by other users (mode %#o)", mode), "chmod 0711 "+dir)
	}
	owner := e.statT(dir)
	isOthers := owner != nil && owner.Uid != 0
	if isOthers {
		v.fail(fmt.Sprintf("owned by user %d", owner.Uid), "chown root: "+dir)
	}
	if mode&0o066 != 0 || isOthers {
		v.repair(RepairStateDirMode)
	}
	switch left := fmt.Sprintf("%d MiB and %d inodes free", f.FreeBytes>>20, f.FreeInodes); {
	case f.FreeBytes == 0 || f.FreeInodes == 0:
		v.fail(left+": no container can get a GPU", "mount -o remount,size=1G,nr_inodes=64k "+dir)
	case f.FreeBytes < littleBytes || f.FreeInodes < littleInodes:
		v.warn(left, "mount -o remount,size=1G,nr_inodes=64k "+dir)
	default:
		v.ok(left)
	}
}

func sameFilesystem(e *exam, a, b string) bool {
	statA, statB := e.statT(a), e.statT(b)
	return statA != nil && statB != nil && statA.Dev == statB.Dev
}

func checkLibraryDir(_ context.Context, e *exam, v *verdict) {
	dir := e.o.LibraryDir
	f, err := e.Filesystem(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		v.fail(dir+" does not exist", "start gpuslice-agent, which creates it, or set --library-dir")
		return
	case err != nil:
		v.fail(oneLine(err), "run gpuslice doctor as root")
		return
	case f.NoExec:
		v.fail(dir+" is on a noexec mount: containers can't load the limiter from it", "mount -o remount,exec MOUNTPOINT, or set another --library-dir of the agent")
	}
	libraries, _ := fs.Glob(e.Host, name(dir)+"/libvgpu-*.so")
	libraries = slices.DeleteFunc(libraries, func(file string) bool {
		return strings.Count(path.Base(file), "-") > 1
	})
	if len(libraries) == 0 || !e.exists(path.Join(dir, "ld.so.preload")) {
		v.fail(dir+" contains no limiter", "start gpuslice-agent, which installs it (--library)")
		return
	}
	if len(v.found) == 0 {
		v.ok(dir + " contains " + path.Base(libraries[len(libraries)-1]))
	}
}
