package ociruntime

import (
	"fmt"
	"slices"
	"strings"
)

// Call is what a command line of an OCI runtime asks for, as far as it matters here.
// The words themselves are passed to the low-level runtime as they are.
type Call struct {
	// Command is the subcommand, "create"; empty where there is none (--version).
	Command string
	// ID is the container's, of commands that have one.
	ID string
	// Bundle is the directory of config.json; empty is the working directory.
	Bundle string
	// Config is crun's --config: the file that is read in place of the bundle's.
	Config string
	// Root is --root, the low-level runtime's directory of states; empty is its own.
	Root string
	// Log and LogFormat are --log and --log-format.
	Log, LogFormat string
	// Rootless is --rootless as it was given.
	Rootless string
}

// makesContainer says whether the command makes a container of a bundle.
func (c Call) makesContainer() bool {
	return c.Command == "create" || c.Command == "run" || c.Command == "restore"
}

// The options that take a value in the next word where none follows a "=". Those that
// are in neither list are taken for switches. runc's, crun's and youki's are here.
var (
	globalValues = []string{"log", "log-format", "root", "criu", "rootless", "cgroup-manager", "log-level", "r", "l"}
	// create's, run's and restore's.
	createValues = []string{
		"bundle", "b", "console-socket", "pid-file", "preserve-fds", "config", "f",
		"image-path", "work-path", "manage-cgroups-mode", "lsm-profile", "lsm-mount-context", "empty-ns",
		"keyring", "restore-network-lock", "network-lock",
	}
	switches = []string{
		"debug", "systemd-cgroup", "help", "h", "version", "v", "s",
		"no-pivot", "no-new-keyring", "detach", "d", "keep", "no-subreaper", "no-mount-fallback",
		"tcp-established", "ext-unix-sk", "shell-job", "file-locks", "auto-dedup", "lazy-pages", "force",
	}
)

// commands are the low-level runtimes' subcommands: what a word after an option that
// isn't known here may be.
var commands = []string{
	"checkpoint", "create", "delete", "events", "exec", "features", "info", "init", "kill", "list",
	"mounts", "pause", "ps", "restore", "resume", "run", "spec", "start", "state", "update", "help", "h",
	"completion",
}

// Parse reads a command line, without the program's name, by the rules of runc's parser
// (urfave/cli v1, on Go's flag): global options come before the command, "-name" is
// "--name", a value follows a "=" or is the next word whatever it looks like, "--" ends
// the options. The command's own options may come before and after its arguments, as
// runc and crun have it.
//
// A command line that makes a container and can't be read for sure is an error: the
// container would go by unlimited.
func Parse(args []string) (Call, error) {
	call := Call{}
	global := func(name, value string) {
		switch name {
		case "root":
			call.Root = value
		case "log":
			call.Log = value
		case "log-format":
			call.LogFormat = value
		case "rootless":
			call.Rootless = value
		}
	}
	rest, err := options(args, globalValues, commands, global)
	if err != nil || len(rest) == 0 {
		return call, err
	}
	call.Command = rest[0]
	if call.makesContainer() {
		return call, call.parseCreate(rest[1:])
	}
	if call.Command == "delete" {
		for _, word := range rest[1:] {
			if !strings.HasPrefix(word, "-") {
				call.ID = word
			}
		}
	}
	return call, nil
}

// parseCreate reads what follows a command that makes a container.
func (c *Call) parseCreate(args []string) error {
	var ids, unknown []string
	option := func(name, value string) {
		switch name {
		case "bundle", "b":
			c.Bundle = value
		case "config", "f":
			c.Config = value
		}
		if !slices.Contains(createValues, name) && !slices.Contains(switches, name) {
			unknown = append(unknown, name)
		}
	}
	for len(args) > 0 {
		rest, err := options(args, createValues, nil, option)
		if err != nil {
			return fmt.Errorf("%s: %w", c.Command, err)
		}
		if ended := len(rest) < len(args) && args[len(args)-len(rest)-1] == "--"; ended {
			ids, rest = append(ids, rest...), nil
		}
		if args = rest; len(args) > 0 {
			ids, args = append(ids, args[0]), args[1:]
		}
	}
	switch {
	case len(ids) == 1:
		c.ID = ids[0]
		return nil
	case len(ids) == 0:
		return fmt.Errorf("%s: the command line names no container", c.Command)
	case len(unknown) > 0:
		return fmt.Errorf("%s: the command line names %q, and one container is wanted: write --%s with a \"=\" before its value, if it has one",
			c.Command, ids, unknown[0])
	default:
		return fmt.Errorf("%s: the command line names %q, and one container is wanted", c.Command, ids)
	}
}

// options reads the options at the beginning of args and returns what follows them. An
// option that isn't known takes the next word for its value if that is neither an option
// nor one of follow; with no follow it takes none.
func options(args, values, follow []string, found func(name, value string)) ([]string, error) {
	for len(args) > 0 {
		name, isOption := strings.CutPrefix(args[0], "-")
		if !isOption || name == "" { // a lone "-" is an argument
			return args, nil
		}
		word := args[0]
		args = args[1:]
		if name = strings.TrimPrefix(name, "-"); name == "" {
			return args, nil // "--"
		}
		name, value, given := strings.Cut(name, "=")
		switch {
		case given:
		case slices.Contains(values, name):
			if len(args) == 0 {
				return nil, fmt.Errorf("the option %s lacks its value", word)
			}
			value, args = args[0], args[1:]
		case len(follow) > 0 && !slices.Contains(switches, name) &&
			len(args) > 0 && !strings.HasPrefix(args[0], "-") && !slices.Contains(follow, args[0]):
			value, args = args[0], args[1:]
		}
		found(name, value)
	}
	return nil, nil
}
