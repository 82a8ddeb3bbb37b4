package discovery

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

const (
	pciDevices = "sys/bus/pci/devices"
	// driverVersion exists while NVIDIA's driver is loaded.
	driverVersion = "proc/driver/nvidia/version"

	vendor       = "10DE"
	displayClass = 0x03 // the base class of VGA, 3D and other display controllers
	// passthrough is the driver of devices that virtual machines get.
	passthrough = "vfio-pci"
)

// HasGPU reports whether a machine has a display controller of NVIDIA that is not reserved for virtual machines, or NVIDIA's driver
// (GPUs that are not PCI devices). root is the machine's "/". Every container sees both, without rights.
func HasGPU(root fs.FS) (bool, error) {
	switch _, err := fs.Stat(root, driverVersion); {
	case err == nil:
		return true, nil
	case !errors.Is(err, fs.ErrNotExist):
		return false, fmt.Errorf("look for NVIDIA's driver: %w", err)
	}
	devices, err := fs.ReadDir(root, pciDevices)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // a machine without PCI
	}
	if err != nil {
		return false, fmt.Errorf("look for PCI devices: %w", err)
	}
	for _, device := range devices {
		text, err := fs.ReadFile(root, path.Join(pciDevices, device.Name(), "uevent"))
		if errors.Is(err, fs.ErrNotExist) {
			continue // it was removed
		}
		if err != nil {
			return false, fmt.Errorf("read a PCI device: %w", err)
		}
		if isGPU(string(text)) {
			return true, nil
		}
	}
	return false, nil
}

// isGPU reads the kernel's description of a PCI device: lines KEY=VALUE, numbers in hexadecimal digits.
func isGPU(uevent string) bool {
	is := map[string]string{}
	for line := range strings.Lines(uevent) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		is[key] = value
	}
	of, _, _ := strings.Cut(is["PCI_ID"], ":")
	class, err := strconv.ParseUint(is["PCI_CLASS"], 16, 24)
	return err == nil && class>>16 == displayClass && strings.EqualFold(of, vendor) && is["DRIVER"] != passthrough
}
