package harness

import (
	"fmt"
	"os"
	"path/filepath"
)

// CgroupDriverEnv is the variable that chooses what makes the containers' cgroups: cgroupfs (the runtime itself, the
// default) or systemd.
const CgroupDriverEnv = "GPUSLICE_TEST_CGROUP_DRIVER"

func cgroupDriver() (string, error) {
	switch driver := os.Getenv(CgroupDriverEnv); driver {
	case "":
		return "cgroupfs", nil
	case "cgroupfs", "systemd":
		return driver, nil
	default:
		return "", fmt.Errorf("%s=%s: it is cgroupfs or systemd", CgroupDriverEnv, driver)
	}
}

// cgroupParent is the parent of the cgroups of all containers of a machine: its directory's name, for systemd as a slice.
func cgroupParent(dir string) string {
	if driver, _ := cgroupDriver(); driver == "systemd" {
		return filepath.Base(dir) + ".slice"
	}
	return "/" + filepath.Base(dir)
}
