package native

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/internal/rawfile"
)

// Root returns the mount of the control groups of version 2, which can be beside those of version 1.
func Root() (string, error) {
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var fs unix.Statfs_t
		if unix.Statfs(dir, &fs) != nil || fs.Type != unix.CGROUP2_SUPER_MAGIC {
			continue
		}
		mounts, err := os.Open("/proc/self/mountinfo")
		if err != nil {
			return "", fmt.Errorf("read the mount options of %s: %w", dir, err)
		}
		defer mounts.Close()
		return dir, delegates(mounts, dir)
	}
	return "", errors.New("the driver's memory limits need control groups of version 2, and this machine has none in /sys/fs/cgroup")
}

// delegates returns an error without the option nsdelegate: root in a container could then mount the control groups in a user
// namespace that it makes, and change the limits of its own group.
func delegates(mounts io.Reader, dir string) error {
	all, err := read(mounts)
	if err != nil {
		return fmt.Errorf("read the mount options of %s: %w", dir, err)
	}
	for _, m := range all {
		if m.Mountpoint == dir && m.FSType == "cgroup2" && slices.Contains(strings.Split(m.VFSOptions, ","), "nsdelegate") {
			return nil
		}
	}
	return fmt.Errorf("%s is mounted without nsdelegate, so root in a container could change its own limits: run `mount -o remount,nsdelegate %s`", dir, dir)
}

// groupOf returns the directory of a process' control group of version 2. The root is not one: others are in it.
func groupOf(proc, root string, pid int) (string, error) {
	text, err := rawfile.Read(filepath.Join(proc, strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return "", fmt.Errorf("find the container's control group: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		group, is := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::")
		if !is {
			continue
		}
		if path.Clean(group) != group || !strings.HasPrefix(group, "/") || group == "/" || strings.HasPrefix(group, "/..") {
			return "", fmt.Errorf("the container has no control group of version 2 of its own (%q): start it with one", group)
		}
		return filepath.Join(root, group), nil
	}
	return "", errors.New("the container has no control group of version 2: the driver's memory limits need it")
}

// own refuses a group that has other processes, or groups below it, and lets no group be made below it: what the driver
// counts for processes in those is not known.
func own(group string, pid int) error {
	text, err := rawfile.Read(filepath.Join(group, "cgroup.procs"))
	if err != nil {
		return fmt.Errorf("read the container's control group: %w", err)
	}
	if !slices.Equal(strings.Fields(string(text)), []string{strconv.Itoa(pid)}) {
		return fmt.Errorf("the control group %s has other processes than the container's first (%d): start the container with a control group of its own", group, pid)
	}
	below, err := os.ReadDir(group)
	if err != nil {
		return fmt.Errorf("read the container's control group: %w", err)
	}
	for _, e := range below {
		if e.IsDir() {
			return fmt.Errorf("the container's control group has another one below it, %s", filepath.Join(group, e.Name()))
		}
	}
	most := filepath.Join(group, "cgroup.max.descendants")
	f, err := os.OpenFile(most, os.O_WRONLY|os.O_TRUNC, 0) // there is none in the root of a hierarchy
	if err == nil {
		_, err = f.WriteString("0")
		err = errors.Join(err, f.Close())
	}
	if err == nil {
		text, err = rawfile.Read(most)
	}
	if err == nil && string(bytes.TrimSpace(text)) != "0" {
		err = fmt.Errorf("%s is %q", most, text)
	}
	if err != nil {
		return fmt.Errorf("keep the container from making control groups: %w", err)
	}
	return nil
}

// maxMountinfo is more than the kernel's limit of mounts takes (sysctl fs.mount-max).
const maxMountinfo = 64 << 20

func read(mounts io.Reader) ([]*mountinfo.Info, error) {
	limited := &io.LimitedReader{R: mounts, N: maxMountinfo}
	all, err := mountinfo.GetMountsFromReader(limited, nil)
	if err == nil && limited.N == 0 {
		err = errors.New("there are too many")
	}
	return all, err
}

// unwritable refuses a container that has control groups mounted to write: its processes could leave their group. The
// mounts are those of the process, below rootfs if the runtime has not yet changed the root directory.
func unwritable(mounts io.Reader, rootfs string, config []rspec.Mount) error {
	all, err := read(mounts)
	if err != nil {
		return fmt.Errorf("read the container's mounts: %w", err)
	}
	root := ""
	if slices.ContainsFunc(all, func(m *mountinfo.Info) bool { return m.Mountpoint == rootfs }) {
		root = strings.TrimSuffix(rootfs, "/")
	}
	at := map[string]int{}
	for _, m := range all {
		at[m.Mountpoint]++
	}
	for _, m := range all {
		inside, is := strings.CutPrefix(m.Mountpoint, root)
		if !is || inside != "" && inside[0] != '/' {
			continue // the host's
		}
		if m.FSType != "cgroup2" && m.FSType != "cgroup" || slices.Contains(strings.Split(m.Options, ","), "ro") {
			continue
		}
		if at[m.Mountpoint] > 1 || !willBeReadOnly(config, inside) {
			return fmt.Errorf("the container has control groups mounted to write, at %s: its processes could leave the group with the limit: mount them read-only", m.Mountpoint)
		}
	}
	return nil
}

// willBeReadOnly: crun makes such mounts read-only after the hook. It does not change what is mounted below a mount.
func willBeReadOnly(config []rspec.Mount, point string) bool {
	for _, m := range slices.Backward(config) {
		if path.Clean(m.Destination) == point {
			kind := m.Type == "cgroup" || m.Type == "cgroup2" || m.Type == "bind"
			return kind && slices.Contains(m.Options, "ro") && !slices.Contains(m.Options, "rw")
		}
	}
	return false
}
