// Command image makes gpuslice's container image from what `make build` has built, without a registry
// and without a daemon: the root file system as a directory, for the Dockerfile beside this file, and the
// same as an OCI archive, for `ctr images import`, `skopeo copy oci-archive:…` and `podman load`.
//
// One image has all programs; the chart says which one a container runs. It holds no shell and no
// package manager. The C library is this machine's, for the programs are linked against that.
//
// The same build gives the same bytes: nothing of the machine's clock, users or directories is in it.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "image: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	var o options
	f := flag.NewFlagSet("image", flag.ContinueOnError)
	f.StringVar(&o.repository, "repository", ".", "`directory` of the sources, whose build/ has what is packed")
	f.StringVar(&o.out, "out", "", "`directory` to write root/ and gpuslice.tar to; empty: build/image of the repository")
	f.StringVar(&o.name, "name", "gpuslice:latest", "`name` that the archive is imported by; a further one for each use")
	f.StringVar(&o.version, "version", "dev", "the image's `version`, for its labels")
	f.StringVar(&o.revision, "revision", "", "the commit that was built, for its labels")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("there are no arguments, and %q is one", f.Arg(0))
	}
	if o.out == "" {
		o.out = filepath.Join(o.repository, "build", "image")
	}
	return o.make()
}

// options are the command's flags.
type options struct {
	repository, out, name, version, revision string
}

// make writes the root directory and the archive.
func (o options) make() error {
	root, err := newRoot(o.repository, machine)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	if err := root.writeDir(filepath.Join(o.out, "root")); err != nil {
		return err
	}
	path := filepath.Join(o.out, "gpuslice.tar")
	size, err := root.writeArchive(path, o)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	fmt.Printf("%s: %s, %d MiB\n", path, o.name, size>>20)
	return nil
}
