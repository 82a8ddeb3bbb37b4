package audit

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/internal/procfs"
)

// DeviceNode has the UUIDs of a GPU and of its MIG devices, the GPU's first.
type DeviceNode []string

// Bounds of a pass and per process, because a tenant can have millions of files open; the next pass continues. mostHeld
// and mostHeldByOne (per container) bound the followed devices.
const (
	searchTime     = 250 * time.Millisecond
	mostOpen       = 8192
	mostNew        = 512
	mostHeld       = 2048
	mostHeldByOne  = 128
	betweenClocks  = 256 // files between two reads of the clock
	firstOfDirents = 2   // "." and ".."
)

var (
	errSearch = fmt.Errorf("the search for open device nodes of GPUs took %s or found %d, and continues in the next pass: processes have very many open files", searchTime, mostNew)
	errHeld   = fmt.Errorf("more than %d open GPUs without a grant in one container, or %d on the node: the others are not followed", mostHeldByOne, mostHeld)
)

// descriptors finds processes with open GPU devices. It compares device numbers, because tenants choose the
// names of nodes. AT_STATX_DONT_SYNC does not wait for a hanging file system (FUSE, NFS).
type descriptors struct {
	proc  procfiles
	clock func() time.Time
	// held has one descriptor per found device. Each pass checks it again.
	held  map[openNode]descriptor
	found int
	until time.Time
	// The search continues with the process next, and in more with these files.
	next int
	more map[int]int
}

type openNode struct {
	pid    int
	device uint64
}

type descriptor struct {
	// dir is the directory in /proc of the process or of a thread.
	dir string
	fd  int
}

func newDescriptors(proc string) *descriptors {
	return &descriptors{proc: procfiles{procfs.FS(proc)}, clock: time.Now, held: map[openNode]descriptor{}, more: map[int]int{}}
}

// search returns the GPU devices that each of the sorted processes has open. A thorough search includes processes with an
// ended first thread. Earlier results stay if there is no time to check them.
func (d *descriptors) search(pids []int, nodes map[uint64]DeviceNode, thorough bool, limit time.Duration) (map[int][]uint64, error) {
	d.until, d.found = d.clock().Add(limit), 0
	maps.DeleteFunc(d.held, func(at openNode, by descriptor) bool { return !d.over() && !d.still(at, by) })
	maps.DeleteFunc(d.more, func(pid, _ int) bool { _, lives := slices.BinarySearch(pids, pid); return !lives })
	err := d.around(pids, nodes, thorough)
	found := map[int][]uint64{}
	for at := range d.held {
		found[at.pid] = append(found[at.pid], at.device)
	}
	for _, devices := range found {
		slices.Sort(devices)
	}
	return found, err
}

func (d *descriptors) over() bool { return d.found >= mostNew || d.clock().After(d.until) }

// around searches each process, beginning where the last search ended: some files of each first, so that processes with very
// many do not delay the others.
func (d *descriptors) around(pids []int, nodes map[uint64]DeviceNode, thorough bool) error {
	first, _ := slices.BinarySearch(pids, d.next)
	pids = slices.Concat(pids[first:], pids[:first])
	d.next = 0
	for _, most := range []int{betweenClocks, mostOpen - betweenClocks} {
		for _, pid := range pids {
			if _, more := d.more[pid]; !more && most != betweenClocks {
				continue
			}
			if d.over() {
				d.next = pid
				return errSearch
			}
			d.process(pid, nodes, thorough, most)
		}
	}
	return nil
}

// process searches open files of one process, and continues where the last search of it ended.
func (d *descriptors) process(pid int, nodes map[uint64]DeviceNode, thorough bool, most int) {
	from, dir := d.more[pid], strconv.Itoa(pid)
	delete(d.more, pid)
	if d.files(pid, dir, from, nodes, most) > 0 || !thorough {
		return
	}
	if _, thread, err := d.proc.Process(pid); err == nil && thread != dir {
		d.files(pid, thread, from, nodes, most)
	}
}

func (d *descriptors) files(pid int, dir string, from int, nodes map[uint64]DeviceNode, most int) (count int) {
	d.proc.openFiles(dir, from, func(files int, _ string, fd int) bool {
		d.file(openNode{pid: pid}, descriptor{dir, fd}, files, nodes)
		count++
		if count == most || count%betweenClocks == 0 && d.over() {
			d.more[pid] = fd + 1
			return false
		}
		return true
	})
	return count
}

// openFiles calls each with the open files from a number on, until it returns false. files is the directory of name.
func (p procfiles) openFiles(dir string, from int, each func(files int, name string, fd int) bool) {
	files, err := unix.Open(p.Path(dir, "fd"), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(files)
	if from > 0 {
		_, _ = unix.Seek(files, int64(from+firstOfDirents), unix.SEEK_SET)
	}
	buffer := make([]byte, 16<<10)
	var names []string
	for {
		n, err := unix.ReadDirent(files, buffer)
		if err != nil || n <= 0 {
			return
		}
		_, _, names = unix.ParseDirent(buffer[:n], -1, names[:0])
		for _, name := range names {
			if fd, err := strconv.Atoi(name); err == nil && !each(files, name, fd) {
				return
			}
		}
	}
}

func (d *descriptors) file(at openNode, by descriptor, files int, nodes map[uint64]DeviceNode) {
	name := strconv.Itoa(by.fd)
	at.device = deviceOf(files, name)
	if nodes[at.device] == nil {
		return
	}
	if _, known := d.held[at]; known || !usable(files, "../fdinfo/"+name) {
		return
	}
	d.held[at] = by
	d.found++
}

func (d *descriptors) still(at openNode, by descriptor) bool {
	dir, name := d.proc.Path(by.dir), strconv.Itoa(by.fd)
	return deviceOf(unix.AT_FDCWD, filepath.Join(dir, "fd", name)) == at.device && usable(unix.AT_FDCWD, filepath.Join(dir, "fdinfo", name))
}

// keep drops devices that are not foreign, and those with the highest PIDs if there are too many.
func (d *descriptors) keep(foreign func(pid int, device uint64) (container string, is bool)) error {
	all, of := 0, map[string]int{}
	var err error
	for _, at := range slices.SortedFunc(maps.Keys(d.held), func(a, b openNode) int {
		return cmp.Or(cmp.Compare(a.pid, b.pid), cmp.Compare(a.device, b.device))
	}) {
		container, is := foreign(at.pid, at.device)
		switch {
		case !is:
			delete(d.held, at)
		case all == mostHeld, of[container] == mostHeldByOne:
			delete(d.held, at)
			err = errHeld
		default:
			all++
			of[container]++
		}
	}
	return err
}

func (d *descriptors) of(pid int) (devices []uint64) {
	for at, by := range d.held {
		if at.pid == pid && d.still(at, by) {
			devices = append(devices, at.device)
		}
	}
	return devices
}

// deviceOf returns the device number of an open file; 0: no character device.
func deviceOf(dir int, name string) uint64 {
	var st unix.Statx_t
	err := unix.Statx(dir, name, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE, &st)
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR {
		return 0
	}
	return unix.Mkdev(st.Rdev_major, st.Rdev_minor)
}

// usable reads fdinfo: with O_PATH a descriptor gives no access to its device.
func usable(dir int, name string) bool {
	info, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false // it has ended
	}
	defer unix.Close(info)
	text := make([]byte, 512) // pos, then flags
	n, _ := unix.Read(info, text)
	_, after, found := bytes.Cut(text[:max(n, 0)], []byte("flags:"))
	line, _, _ := bytes.Cut(after, []byte("\n"))
	flags, err := strconv.ParseUint(string(bytes.TrimSpace(line)), 8, 64)
	return found && err == nil && flags&unix.O_PATH == 0
}

func nodesOf(devices []uint64, nodes map[uint64]DeviceNode) (all []DeviceNode) {
	for _, device := range devices {
		if node := nodes[device]; node != nil {
			all = append(all, node)
		}
	}
	return all
}
