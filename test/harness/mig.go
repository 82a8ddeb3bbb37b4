package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// The numbers of MIG devices' capabilities in testdata/simdriver (README, "MIG").
const (
	capsMajor      = 120
	firstCapMinor  = 3
	instancesOfGPU = 15
	capsOfInstance = 9
)

// WriteDriverFiles writes below a directory, as "devices" and "driver", what is in /proc with a driver with MIG: the major number of the
// capabilities' device nodes, and the minor numbers of all instances that these GPUs can have, by the GPUs' minor numbers.
func WriteDriverFiles(dir string, gpus ...int) error {
	files := map[string]string{}
	for _, gpu := range gpus {
		for id := range instancesOfGPU {
			instance := fmt.Sprintf("driver/nvidia/capabilities/gpu%d/mig/gi%d", gpu, id)
			for i, path := range []string{instance, instance + "/ci0"} {
				minor := firstCapMinor + (gpu*instancesOfGPU+id)*capsOfInstance + i
				files[path+"/access"] = fmt.Sprintf("DeviceFileMinor: %d\nDeviceFileMode: 292\nDeviceFileModify: 1\n", minor)
			}
		}
	}
	devices, err := os.ReadFile("/proc/devices")
	if err != nil {
		return err
	}
	const head = "Character devices:\n"
	files["devices"] = strings.Replace(string(devices), head, fmt.Sprintf("%s%3d nvidia-caps\n195 nvidia\n", head, capsMajor), 1)
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o444); err != nil {
			return err
		}
	}
	return nil
}

// withDriverFiles is a command that starts another with these files in /proc, in a mount namespace of its own, as the same process.
func withDriverFiles(dir string) []string {
	script := fmt.Sprintf(`mount --bind %[1]s/devices /proc/devices && mount --bind %[1]s/driver /proc/driver && exec "$@"`, dir)
	return []string{"unshare", "--mount", "--propagation=slave", "sh", "-c", script, "sh"}
}

// MIGDevices are the MIG devices that the simulated driver has: the profiles by UUID.
func (m *Machine) MIGDevices(ctx context.Context) (map[string]string, error) {
	text, err := m.Simctl(ctx, "status", "-o", "json")
	if err != nil {
		return nil, err
	}
	var status struct {
		GPUs []struct {
			MIG []struct{ UUID, Profile string }
		}
	}
	if err := json.Unmarshal([]byte(text), &status); err != nil {
		return nil, err
	}
	made := map[string]string{}
	for _, gpu := range status.GPUs {
		for _, mig := range gpu.MIG {
			made[mig.UUID] = mig.Profile
		}
	}
	return made, nil
}

// CreateMIG makes a MIG device (PROFILE:START) as an administrator.
func (m *Machine) CreateMIG(ctx context.Context, gpu int, profile string) error {
	_, err := m.Simctl(ctx, "mig", strconv.Itoa(gpu), "create", profile)
	return err
}
