// Package version knows what was built.
package version

import "runtime/debug"

// version is set at link time: -ldflags "-X …/version.version=v1.2.3".
var version string

// String is the version, or the module's or commit's where none was set.
func String() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return info.Main.Version + " (" + s.Value + ")"
		}
	}
	return info.Main.Version
}
