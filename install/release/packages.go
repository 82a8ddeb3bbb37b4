package main

import (
	"cmp"
	"debug/elf"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm"
)

const description = `Shares of NVIDIA GPUs for containers, with hard limits
Limits of GPU memory and shares of compute time for the containers of docker,
podman and containerd. "gpuslice install" configures an engine; the package
itself changes and starts nothing.`

// packages writes a deb and an rpm for hosts with docker, podman or containerd.
func (o options) packages(arch string, contents []content) error {
	libc, err := glibcOf(contents)
	if err != nil {
		return err
	}
	for kind, needs := range map[string]string{
		"deb": "libc6 (>= " + libc + ")",
		"rpm": "libc.so.6(GLIBC_" + libc + ")(64bit)",
	} {
		info := nfpm.WithDefaults(&nfpm.Info{
			Name: "gpuslice", Arch: arch, Platform: "linux", Version: o.version, Release: "1",
			Section: "admin", Maintainer: "The gpuslice authors", Vendor: "gpuslice", Homepage: o.home, License: "Apache-2.0",
			Description: description, MTime: o.date,
		})
		info.Depends = []string{needs}
		info.RPM.BuildHost = "localhost"
		for _, c := range contents {
			if !c.clusters {
				info.Contents = append(info.Contents, &files.Content{
					Source: c.from, Destination: "/usr/" + c.to,
					FileInfo: &files.ContentFileInfo{Owner: "root", Group: "root", Mode: c.mode, MTime: o.date},
				})
			}
		}
		packager, err := nfpm.Get(kind)
		if err != nil {
			return err
		}
		// A site for downloads may rename a file with "~", which is in the name of a version before a release.
		path := o.file(strings.ReplaceAll(packager.ConventionalFileName(info), "~", "-"))
		if err := write(path, func(w io.Writer) error { return packager.Package(info, w) }); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

// glibcOf is the oldest glibc with which all programs of a package start.
func glibcOf(contents []content) (string, error) {
	newest := ""
	for _, c := range contents {
		if c.clusters || filepath.Dir(c.to) != "bin" {
			continue
		}
		f, err := elf.Open(c.from)
		if err != nil {
			return "", fmt.Errorf("%s: %w", c.from, err)
		}
		symbols, err := f.ImportedSymbols()
		f.Close()
		if err != nil && f.Section(".dynamic") != nil {
			return "", fmt.Errorf("%s: %w", c.from, err)
		}
		for _, s := range symbols {
			if v, is := strings.CutPrefix(s.Version, "GLIBC_"); is && older(newest, v) {
				newest = v
			}
		}
	}
	return cmp.Or(newest, "2.17"), nil
}

// older compares versions like 2.4 and 2.34.
func older(a, b string) bool {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(x), len(y)) {
		m, _ := strconv.Atoi(x[i])
		n, _ := strconv.Atoi(y[i])
		if m != n {
			return m < n
		}
	}
	return len(x) < len(y)
}

// plugins packs kubectl's plugin for each platform for which it was built, and writes krew's manifest. Krew runs
// kubectl-gpuslice from the archive's directory.
func (o options) plugins(programs []string) error {
	var platforms []platform
	var err error
	for _, program := range programs {
		platformName, windows := strings.CutSuffix(strings.TrimPrefix(filepath.Base(program), "kubectl-gpuslice-"), ".exe")
		goos, arch, _ := strings.Cut(platformName, "-")
		bin := "kubectl-gpuslice"
		if windows {
			bin += ".exe"
		}
		contents := []content{
			{from: program, to: bin, mode: 0o755},
			{from: filepath.Join(o.repository, "LICENSE"), to: "LICENSE", mode: 0o644},
			{from: filepath.Join(o.repository, "build", noticesFile), to: noticesFile, mode: 0o644},
		}
		name := fmt.Sprintf("kubectl-gpuslice-%s-%s-%s", o.tag(), goos, arch)
		if windows {
			name += ".zip"
			err = writeZip(o.file(name), contents, o.date)
		} else {
			name += ".tar.gz"
			err = writeTarGz(o.file(name), "", contents, o.date)
		}
		if err != nil {
			return err
		}
		sha256, err := sumOf(o.file(name))
		if err != nil {
			return err
		}
		platforms = append(platforms, platform{
			Selector: selector{MatchLabels: map[string]string{"os": goos, "arch": arch}},
			URI:      fmt.Sprintf("%s/releases/download/%s/%s", o.home, o.version, name),
			SHA256:   sha256, Bin: bin,
		})
	}
	return o.krew(platforms)
}
