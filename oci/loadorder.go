package oci

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// CheckLoading refuses variables by which programs load a driver library before the limiter, or another one
// than the stub library. It detects mistakes, not attacks. With NRI, which can't read links, the limiter
// checks the order again when CUDA starts.
func CheckLoading(e Enforcement, c Container) error {
	if e == EnforceNone || e == EnforceNative {
		return nil
	}
	// These are loaded before /etc/ld.so.preload's libraries.
	for _, name := range []string{"LD_PRELOAD", "LD_AUDIT"} {
		for _, value := range c.allenv(name) {
			if file := driverIn(value, c.Rootfs); file != "" {
				return fmt.Errorf("its %s has %.200s, a driver library that would be loaded before the limiter: remove it", name, file)
			}
			if file, why := unjudged(value); file != "" {
				return fmt.Errorf("its %s has %.200s, which could be a driver library that is loaded before the limiter, because the path %s: use the real path of the file", name, file, why)
			}
		}
	}
	if e.stubs() && !e.preloads() && c.Rootfs != nil {
		if file := driverIn(c.Rootfs.Preload, c.Rootfs); file != "" {
			return fmt.Errorf("its /etc/ld.so.preload has %.200s, a driver library that would be loaded before the stub library: remove it", file)
		}
	}
	for _, value := range c.allenv("LD_LIBRARY_PATH") {
		for _, dir := range listed(value) {
			if c.Rootfs.behind(dir) {
				return fmt.Errorf("its LD_LIBRARY_PATH has %.200s, which is or can be the directory of the driver's own libraries: remove it", dir)
			}
			if !e.stubs() || !slices.Contains(strings.Split(dir, "/"), "compat") {
				continue // with a preload, any directory is safe
			}
			const own = "its LD_LIBRARY_PATH has %s, where programs find the image's own libcuda.so.1 (cuda-compat) before the one with the limiter: "
			if !e.preloads() {
				return fmt.Errorf(own+"set limiter mode to auto, which limits that library too, or remove the directory", dir)
			}
			if c.Rootfs.ignoresPreload() != nil {
				return fmt.Errorf(own+"not every program of this image reads /etc/ld.so.preload, which would limit that library; remove the directory", dir)
			}
		}
	}
	return nil
}

func driverIn(list string, r *Rootfs) string {
	for _, file := range listed(list) {
		if r.behind(file) || slices.ContainsFunc(drivers, func(d driver) bool { return d.is(file) || d.is(r.follow(file)) || d.hidden == file }) {
			return file
		}
	}
	return ""
}

// kernelLinks are paths of links that can lead anywhere, such as /proc/self/root. /dev/fd is a link to /proc/self/fd.
var kernelLinks = []string{"/proc", "/dev/fd", "/dev/stdin", "/dev/stdout", "/dev/stderr"}

// behind reports whether a path can lead to the driver's own libraries.
func (r *Rootfs) behind(file string) bool {
	for _, file := range []string{path.Clean(file), r.follow(file)} {
		if within(file, driverDir) || within(file, r.follow(driverDir)) ||
			slices.ContainsFunc(kernelLinks, func(dir string) bool { return within(file, dir) }) {
			return true
		}
	}
	return false
}

// unjudged returns a file that only the loader can resolve, and why.
func unjudged(list string) (file, why string) {
	for _, file := range listed(list) {
		switch {
		case strings.Contains(file, "$"):
			return file, "contains a token of the loader ($ORIGIN, $LIB, $PLATFORM)"
		case slices.Contains(strings.Split(file, "/"), ".."):
			return file, "contains .., which leads elsewhere after a link"
		}
	}
	return "", ""
}

func listed(value string) []string {
	return strings.FieldsFunc(value, func(r rune) bool { return strings.ContainsRune(":; \t\n", r) })
}
