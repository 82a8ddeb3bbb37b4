// Command release makes the files of a release from the output of `make build` and `make image` for each architecture:
// archives, deb and rpm packages, an image for all architectures, the chart, archives of kubectl's plugin with krew's
// manifest, SBOMs, notes, checksums and a statement of provenance. It needs no network. The same input gives the same bytes.
package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "release: %v\n", err)
		os.Exit(1)
	}
}

// options are the command's flags.
type options struct {
	repository, out, version, revision, image, home string
	// archs are the architectures of the nodes' programs, as Go names them.
	archs []string
	// date is the time of all files.
	date time.Time
	// modules is the directory of this module, which has the tools.
	modules string
}

func run(args []string) error {
	var o options
	var archs string
	var seconds int64
	f := flag.NewFlagSet("release", flag.ContinueOnError)
	f.StringVar(&o.repository, "repository", ".", "source `directory` with the output of `make build` and `make image`")
	f.StringVar(&o.out, "out", "", "`directory` for the files (default: build/release in the repository); it is emptied")
	f.StringVar(&o.version, "version", "", "`version`: v1.2.3 or v1.2.3-rc.1")
	f.StringVar(&o.revision, "revision", "", "the commit")
	f.StringVar(&o.image, "image", "gpuslice", "`repository` of the image in a registry")
	f.StringVar(&o.home, "home", "https://github.com/gpuslice/gpuslice", "`URL` of the project; its downloads are below releases/download")
	f.StringVar(&archs, "archs", "amd64,arm64", "`architectures` of the nodes")
	f.Int64Var(&seconds, "date", 0, "time of all files, in `seconds` since 1970")
	f.StringVar(&o.modules, "modules", ".", "`directory` of this program's module, for the SBOM's tool")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if !isVersion.MatchString(o.version) {
		return fmt.Errorf("-version %q: want v1.2.3, v1.2.3-rc.1 or similar: is there a tag?", o.version)
	}
	o.archs, o.date = strings.Split(archs, ","), time.Unix(seconds, 0).UTC()
	if o.out == "" {
		o.out = filepath.Join(o.repository, "build/release")
	}
	return o.release()
}

// isVersion is semver's pattern with a "v".
var isVersion = regexp.MustCompile(`^v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$`)

// number is the version without "v".
func (o options) number() string { return strings.TrimPrefix(o.version, "v") }

// tag is the version as the tag of an image, which can't have a "+".
func (o options) tag() string { return strings.ReplaceAll(o.number(), "+", "-") }

func (o options) build(arch string) string {
	if arch == runtime.GOARCH {
		return filepath.Join(o.repository, "build")
	}
	return filepath.Join(o.repository, "build", arch)
}

func (o options) release() error {
	notes, err := o.notes()
	if err != nil {
		return err
	}
	contents, archives := map[string][]content{}, []string{}
	for _, arch := range o.archs {
		if contents[arch], err = o.contents(arch); err != nil {
			return err
		}
		archive := filepath.Join(o.build(arch), "image/gpuslice.tar")
		if _, err := os.Stat(archive); err != nil {
			return fmt.Errorf("%w: run `make image` for each architecture first", err)
		}
		archives = append(archives, archive)
	}
	plugins, err := filepath.Glob(filepath.Join(o.repository, "build/plugins/kubectl-gpuslice-*"))
	if err != nil {
		return err
	}
	if len(plugins) == 0 {
		return errors.New("kubectl's plugin is not built: run `make plugins` first")
	}
	if err := os.RemoveAll(o.out); err != nil {
		return err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	for _, arch := range o.archs {
		contents := contents[arch]
		name := fmt.Sprintf("gpuslice-%s-linux-%s", o.tag(), arch)
		if err := writeTarGz(o.file(name+".tar.gz"), name, contents, o.date); err != nil {
			return err
		}
		if err := o.packages(arch, contents); err != nil {
			return err
		}
		if err := o.sboms(arch); err != nil {
			return err
		}
	}
	digest, err := joinImages(o.file("gpuslice-"+o.tag()+"-image.tar"), o.image+":"+o.tag(), archives)
	if err != nil {
		return err
	}
	if err := o.write("IMAGE", fmt.Sprintf("%s:%s@%s\n", o.image, o.tag(), digest)); err != nil {
		return err
	}
	if err := o.chart(); err != nil {
		return fmt.Errorf("pack the chart: %w", err)
	}
	if err := o.plugins(plugins); err != nil {
		return err
	}
	if err := o.write("RELEASE-NOTES.md", notes); err != nil {
		return err
	}
	notices, err := os.ReadFile(filepath.Join(o.repository, "build", noticesFile))
	if err != nil {
		return err
	}
	if err := o.write(noticesFile, string(notices)); err != nil {
		return err
	}
	if err := o.provenance(); err != nil {
		return err
	}
	sums, err := o.sums()
	if err != nil {
		return err
	}
	var text strings.Builder
	for _, s := range sums {
		fmt.Fprintf(&text, "%s  %s\n", s.sha256, s.name)
	}
	return o.write("SHA256SUMS", text.String())
}

func (o options) file(name string) string { return filepath.Join(o.out, name) }

func (o options) write(name, text string) error {
	return os.WriteFile(o.file(name), []byte(text), 0o644)
}

const noticesFile = "THIRD-PARTY-NOTICES"

// content is a file of an archive, which is unpacked to a directory, and of a package, which is unpacked to /usr.
type content struct {
	from, to string
	mode     os.FileMode
	// clusters: the file is for clusters, so packages for hosts lack it.
	clusters bool
}

// contents are the files of an architecture, by their path. gpuslice finds the limiter in lib/gpuslice, beside bin.
func (o options) contents(arch string) ([]content, error) {
	build, doc := o.build(arch), "share/doc/gpuslice/"
	all := []content{
		{from: "bin/gpuslice", to: "bin/gpuslice", mode: 0o755},
		{from: "bin/gpuslice-agent", to: "bin/gpuslice-agent", mode: 0o755},
		{from: "bin/gpuslice-runtime", to: "bin/gpuslice-runtime", mode: 0o755},
		{from: "bin/gpuslice-scheduler", to: "bin/gpuslice-scheduler", mode: 0o755, clusters: true},
		{from: "lib/libvgpu.so", to: "lib/gpuslice/libvgpu.so", mode: 0o755},
		{from: "lib/libvgpu-cuda.so", to: "lib/gpuslice/libvgpu-cuda.so", mode: 0o755},
		{from: "lib/libvgpu-nvml.so", to: "lib/gpuslice/libvgpu-nvml.so", mode: 0o755},
		{from: "lib/gpuslice-probe", to: "lib/gpuslice/gpuslice-probe", mode: 0o755},
	}
	for i := range all {
		all[i].from = filepath.Join(build, all[i].from)
	}
	texts := []content{
		{from: "install/gpuslice-cdi.service", to: "lib/systemd/system/gpuslice-cdi.service"},
		{from: "install/gpuslice-cdi-driver.service", to: "lib/systemd/system/gpuslice-cdi-driver.service"},
		{from: "install/runtime.example.yaml", to: doc + "runtime.example.yaml"},
		{from: "install/agent.example.yaml", to: doc + "agent.example.yaml"},
		{from: "LICENSE", to: doc + "copyright"},
		{from: "CHANGELOG.md", to: doc + "CHANGELOG.md"},
		{from: filepath.Join("build", noticesFile), to: doc + noticesFile},
	}
	pages, err := filepath.Glob(filepath.Join(o.repository, "build/man/gpuslice*.8"))
	if err != nil {
		return nil, err
	}
	if len(pages) == 0 {
		return nil, errors.New("there are no man pages: run `make man` first")
	}
	for _, page := range pages {
		name := filepath.Base(page)
		texts = append(texts, content{from: filepath.Join("build/man", name), to: "share/man/man8/" + name})
	}
	for _, c := range texts {
		c.from, c.mode = filepath.Join(o.repository, c.from), 0o644
		all = append(all, c)
	}
	for _, c := range all {
		if _, err := os.Stat(c.from); err != nil {
			return nil, fmt.Errorf("%w: run `make build`, `make notices` and `make man` first", err)
		}
	}
	slices.SortFunc(all, func(a, b content) int { return strings.Compare(a.to, b.to) })
	return all, nil
}

// sboms writes what each program is linked with, in CycloneDX.
func (o options) sboms(arch string) error {
	for _, name := range []string{"gpuslice", "gpuslice-agent", "gpuslice-runtime", "gpuslice-scheduler"} {
		file, err := filepath.Abs(o.file(fmt.Sprintf("%s-%s-linux-%s.cdx.json", name, o.tag(), arch)))
		if err != nil {
			return err
		}
		program, err := filepath.Abs(filepath.Join(o.build(arch), "bin", name))
		if err != nil {
			return err
		}
		c := exec.Command("go", "tool", "cyclonedx-gomod", "bin", "-json", "-noserial", "-notimestamp", "-version", o.version, "-output", file, program)
		c.Dir = o.modules
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("SBOM of %s: %w\n%s", program, err, out)
		}
	}
	return nil
}

// anySection is a heading of CHANGELOG.md.
var anySection = regexp.MustCompile(`(?m)^## (\S+).*\n`)

// notes are the version's section of CHANGELOG.md; that of what is unreleased for a version with a suffix.
func (o options) notes() (string, error) {
	text, err := os.ReadFile(filepath.Join(o.repository, "CHANGELOG.md"))
	if err != nil {
		return "", err
	}
	core, suffix := strings.FieldsFunc(o.number(), func(r rune) bool { return r == '-' || r == '+' })[0], strings.ContainsAny(o.number(), "-+")
	sections := anySection.FindAllSubmatchIndex(text, -1)
	for _, wanted := range []string{o.number(), core, "Unreleased"} {
		for i, at := range sections {
			name := strings.Trim(string(text[at[2]:at[3]]), "[]")
			if name != wanted {
				continue
			}
			end := len(text)
			if i+1 < len(sections) {
				end = sections[i+1][0]
			}
			if notes := strings.TrimSpace(string(text[at[1]:end])); notes != "" {
				return fmt.Sprintf("# gpuslice %s\n\n%s\n", o.version, notes), nil
			}
		}
		if wanted == core && !suffix {
			break
		}
	}
	return "", fmt.Errorf("CHANGELOG.md has no section %q with text: name it after the version before you set the tag", core)
}

type sum struct {
	name, sha256 string
}

// sums are those of all files that are written so far.
func (o options) sums() (sums []sum, err error) {
	entries, err := os.ReadDir(o.out)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		s, err := sumOf(o.file(e.Name()))
		if err != nil {
			return nil, err
		}
		sums = append(sums, sum{e.Name(), s})
	}
	return sums, nil
}

func sumOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
