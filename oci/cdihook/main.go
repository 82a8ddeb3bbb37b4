package cdihook

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"golang.org/x/sys/unix"
)

// Supported are the hooks that Main knows.
var Supported = []string{"chmod", "create-symlinks", "update-ldcache"}

// hook is one call of a hook.
type hook interface {
	// flags declares the hook's flags.
	flags(*flagSet)
	// run does the hook's work in a container's root.
	run(r *root, log *slog.Logger) error
}

// newHook is the hook of a name, nil where it is not known.
func newHook(name string) hook {
	switch name {
	case "chmod":
		return &chmod{}
	case "create-symlinks":
		return &createSymlinks{}
	case "update-ldcache":
		return &updateLDCache{host: hostLdconfig{}}
	}
	return nil
}

// Main runs the hook that args name, the hook's name first, and returns the exit
// status: 0 it is done or nothing is to be done, 1 it failed.
func Main(args []string, stdin io.Reader, _, stderr io.Writer) int {
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	if len(args) == 0 {
		log.Warn("no CDI hook is named", "known", strings.Join(Supported, ", "))
		return 0
	}
	h := newHook(args[0])
	if h == nil {
		log.Warn("CDI hook not supported: nothing is done", "hook", args[0], "known", strings.Join(Supported, ", "))
		return 0
	}
	err := run(h, args[0], args[1:], stdin, log)
	if errors.Is(err, unix.EROFS) {
		log.Warn("the container's root can't be written: left as it is", "hook", args[0], "error", err)
		return 0
	}
	if err != nil {
		fmt.Fprintf(stderr, "gpuslice: CDI hook %s: %v\n", args[0], err)
		return 1
	}
	return 0
}

// run is Main of a hook that is known.
func run(h hook, name string, args []string, stdin io.Reader, log *slog.Logger) error {
	stateFile, err := parse(h, name, args, log)
	if err != nil {
		return err
	}
	dir, err := rootDir(stateFile, stdin)
	if err != nil {
		return err
	}
	r, err := openRoot(dir)
	if err != nil {
		return err
	}
	defer r.close()
	return h.run(r, log)
}

// parse reads a hook's flags. Those that are not known are warned of and left out.
func parse(h hook, name string, args []string, log *slog.Logger) (stateFile string, err error) {
	f := flagSet{set: map[string]func(string) error{}}
	f.text(&stateFile, "container-spec", "-") // a file; - is stdin
	h.flags(&f)
	err = f.parse(args)
	if len(f.unknown) > 0 {
		log.Warn("CDI hook has flags that are not known: they are left out", "hook", name, "flags", f.unknown)
	}
	return stateFile, err
}
