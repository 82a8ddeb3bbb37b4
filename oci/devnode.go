package oci

import (
	"cmp"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

type nodeInfo struct {
	kind         string // "c", "b" or "p"
	major, minor int64
	mode         fs.FileMode
}

// complete fills in what a CDI spec omits, from the host's node: NRI needs it before CDI does so. Each lookup does,
// because numbers change when modules are loaded again.
func complete(d *cdispec.DeviceNode, stat func(string) (nodeInfo, error)) error {
	d.HostPath = cmp.Or(d.HostPath, d.Path)
	specified := d.Type == "p" || d.Type != "" && d.Major != 0
	if specified && d.FileMode != nil {
		return nil
	}
	info, err := stat(d.HostPath)
	if err != nil {
		if specified {
			return nil // the spec is sufficient
		}
		return fmt.Errorf("device node %s of the host: %w: %s", d.HostPath, err, missingNodeAdvice(d.HostPath))
	}
	if d.FileMode == nil {
		mode := info.mode
		d.FileMode = &mode
	}
	if specified {
		return nil
	}
	if d.Type != "" && d.Type != info.kind && !(d.Type == "u" && info.kind == "c") {
		return fmt.Errorf("device node %s of the host is of type %q, and of type %q in its CDI spec: generate the spec again", d.HostPath, info.kind, d.Type)
	}
	if d.Type = cmp.Or(d.Type, info.kind); d.Type != "p" {
		d.Major, d.Minor = info.major, info.minor
	}
	return nil
}

func missingNodeAdvice(path string) string {
	switch base := filepath.Base(path); {
	case strings.HasPrefix(base, "nvidia-uvm"):
		return "load the module: nvidia-modprobe -u -c 0 (or modprobe nvidia-uvm)"
	case strings.HasPrefix(base, "nvidia-modeset"):
		return "load the module: nvidia-modprobe -m"
	default:
		return "is the driver loaded? run nvidia-smi, then generate the CDI spec again"
	}
}

func statNode(path string) (nodeInfo, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return nodeInfo{}, err
	}
	info := nodeInfo{
		kind:  nodeKinds[st.Mode&unix.S_IFMT],
		major: int64(unix.Major(uint64(st.Rdev))),
		minor: int64(unix.Minor(uint64(st.Rdev))),
		mode:  fs.FileMode(st.Mode &^ unix.S_IFMT & 0o777),
	}
	if info.kind == "" {
		return nodeInfo{}, fmt.Errorf("%s is not a device node", path)
	}
	return info, nil
}

var nodeKinds = map[uint32]string{unix.S_IFCHR: "c", unix.S_IFBLK: "b", unix.S_IFIFO: "p"}
