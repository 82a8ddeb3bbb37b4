package cdihook

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"golang.org/x/sys/unix"
)

var Supported = []string{"chmod", "create-symlinks", "update-ldcache"}

type hook interface {
	flags(*flagSet)
	run(r *root, log *slog.Logger) error
}

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

// Main runs a hook. args are its name and its flags. The exit status is 0 or, after an error, 1.
func Main(args []string, stdin io.Reader, _, stderr io.Writer) int {
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	if len(args) == 0 {
		log.Warn("CDI hook name is missing", "known", strings.Join(Supported, ", "))
		return 0
	}
	h := newHook(args[0])
	if h == nil {
		log.Warn("CDI hook is not supported: skipped", "hook", args[0], "known", strings.Join(Supported, ", "))
		return 0
	}
	err := run(h, args[0], args[1:], stdin, log)
	if errors.Is(err, unix.EROFS) {
		log.Warn("the container's root is read-only: not changed", "hook", args[0], "error", err)
		return 0
	}
	if err != nil {
		fmt.Fprintf(stderr, "gpuslice: CDI hook %s: %v\n", args[0], err)
		return 1
	}
	return 0
}

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

func parse(h hook, name string, args []string, log *slog.Logger) (stateFile string, err error) {
	f := flagSet{set: map[string]func(string) error{}}
	f.text(&stateFile, "container-spec", "-") // a file; - is stdin
	h.flags(&f)
	err = f.parse(args)
	if len(f.unknown) > 0 {
		log.Warn("CDI hook has unknown flags: skipped", "hook", name, "flags", f.unknown)
	}
	return stateFile, err
}
