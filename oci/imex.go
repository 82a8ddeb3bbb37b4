package oci

import (
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuslice/gpuslice/internal/rawfile"
)

// MaxIMEXChannel is the driver's last channel.
const MaxIMEXChannel = 2047

// HostIMEXChannels returns the device nodes of channels of NVIDIA's IMEX, by which GPUs of several nodes share memory.
// A driver without IMEX has none.
func HostIMEXChannels(ids []int) []*cdispec.DeviceNode {
	if len(ids) == 0 {
		return nil
	}
	text, _ := rawfile.Read("/proc/devices")
	return imexChannels(string(text), ids)
}

// imexChannels makes them by the numbers in /proc/devices: the agent's own /dev has no channels.
func imexChannels(devices string, ids []int) (nodes []*cdispec.DeviceNode) {
	for line := range strings.Lines(devices) {
		fields := strings.Fields(line)
		if len(fields) != 2 || fields[1] != "nvidia-caps-imex-channels" {
			continue
		}
		major, err := strconv.ParseInt(fields[0], 10, 64)
		if err != nil {
			return nil
		}
		for _, id := range ids {
			mode := fs.FileMode(0o666)
			path := fmt.Sprintf("/dev/nvidia-caps-imex-channels/channel%d", id)
			nodes = append(nodes, &cdispec.DeviceNode{Path: path, HostPath: path, Type: "c", Major: major, Minor: int64(id), FileMode: &mode, Permissions: "rw"})
		}
		return nodes
	}
	return nil
}
