// Package version has the version.
package version

import "runtime/debug"

// version is set with -ldflags "-X …/version.version=v1.2.3".
var version string

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
