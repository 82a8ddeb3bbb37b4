// Command image builds gpuslice's container image from the output of `make build`: the root file system as a
// directory, for the Dockerfile, and an OCI archive. The image has all programs, no shell, and this machine's
// C library. The same build gives the same bytes.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "image: %v\n", err)
		os.Exit(1)
	}
}

// options are the command's flags.
type options struct {
	repository, out, name, version, revision string
}

func run(args []string) error {
	var o options
	f := flag.NewFlagSet("image", flag.ContinueOnError)
	f.StringVar(&o.repository, "repository", ".", "source `directory` with the output of `make build`")
	f.StringVar(&o.out, "out", "", "`directory` for root/ and gpuslice.tar (default: build/image in the repository)")
	f.StringVar(&o.name, "name", "gpuslice:latest", "`name` of the image in the archive")
	f.StringVar(&o.version, "version", "dev", "`version` for the image's labels")
	f.StringVar(&o.revision, "revision", "", "commit for the image's labels")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if o.out == "" {
		o.out = filepath.Join(o.repository, "build", "image")
	}
	syscall.Umask(0o022) // the modes of root/ must not depend on the caller
	root, path := filepath.Join(o.out, "root"), filepath.Join(o.out, "gpuslice.tar")
	if err := writeRoot(root, o.repository, libraryDirs); err != nil {
		return err
	}
	size, err := writeArchive(path, root, o)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	fmt.Printf("%s: %s, %d MiB\n", path, o.name, size>>20)
	return nil
}
