package oci

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// CheckLoading refuses a container whose variables have its programs load a driver's
// library before the limiter, or find one before the front. It is for who means well with
// a variable that was right elsewhere, and for images: what a program does itself is not
// seen here.
func CheckLoading(e Enforcement, c Container) error {
	if e == EnforceNone {
		return nil
	}
	// What these name is loaded before /etc/ld.so.preload's libraries, and names are looked
	// up in it first.
	for _, name := range []string{"LD_PRELOAD", "LD_AUDIT"} {
		for _, value := range c.allenv(name) {
			if file := driverIn(value); file != "" {
				return fmt.Errorf("its %s has %s, a library of the driver's that would be loaded before the limiter: take it out", name, file)
			}
		}
	}
	if e.fronts() && !e.preloads() && c.Rootfs != nil {
		if file := driverIn(c.Rootfs.Preload); file != "" {
			return fmt.Errorf("its /etc/ld.so.preload has %s, a library of the driver's that would be loaded before the front: take it out", file)
		}
	}
	for _, value := range c.allenv("LD_LIBRARY_PATH") {
		for _, dir := range listed(value) {
			if within(path.Clean(dir), driverDir) {
				return fmt.Errorf("its LD_LIBRARY_PATH has %s, the folder of the driver behind the limiter: take it out", dir)
			}
			if !e.fronts() || !slices.Contains(strings.Split(dir, "/"), "compat") {
				continue // the preload holds any
			}
			const own = "its LD_LIBRARY_PATH has %s, where programs find the image's own libcuda.so.1 (cuda-compat) before the one with the limiter: "
			if !e.preloads() {
				return fmt.Errorf(own+"set limiter mode to auto, which holds that too, or take the folder out", dir)
			}
			if c.Rootfs.ignoresPreload() != nil {
				return fmt.Errorf(own+"not every program of this image reads /etc/ld.so.preload, which would hold that; take the folder out", dir)
			}
		}
	}
	return nil
}

// driverIn is the first file of a list that is one of the driver's libraries, by its name
// or its place.
func driverIn(list string) string {
	for _, file := range listed(list) {
		if within(path.Clean(file), driverDir) || slices.ContainsFunc(drivers, func(d driver) bool { return d.is(file) }) {
			return file
		}
	}
	return ""
}

// listed are the paths of a variable, or a file, of the loaders.
func listed(value string) []string {
	return strings.FieldsFunc(value, func(r rune) bool { return strings.ContainsRune(":; \t\n", r) })
}
