package ociruntime

import (
	"fmt"
	"slices"
	"strings"
)

// Call is what this program uses of a command line.
type Call struct {
	Command        string
	ID             string
	Bundle         string // empty: the working directory
	Config         string // crun's --config, replaces the bundle's
	Root           string // the low-level runtime's directory of states
	Log, LogFormat string
	Rootless       string
	Version        bool // the options ask for it
}

func (c Call) createsContainer() bool {
	return c.Command == "create" || c.Command == "run" || c.Command == "restore"
}

// The options of runc, crun and youki, with a value or without (switches).
var (
	globalValues = []string{"log", "log-format", "root", "criu", "rootless", "cgroup-manager", "log-level", "r", "l"}
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

// A word of commands is never the value of an unknown global option.
var commands = []string{
	"checkpoint", "create", "delete", "events", "exec", "features", "info", "init", "kill", "list",
	"mounts", "pause", "ps", "restore", "resume", "run", "spec", "start", "state", "update", "help", "h",
	"completion",
}

// Parse reads a command line without the program's name by runc's rules (urfave/cli v1): "-name" is
// "--name", a value follows a "=" or is the next word in any form, "--" ends the options, the
// command's options can follow its arguments. An ambiguous command line that creates a container
// is an error: the container might have no limits.
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
		case "version", "v":
			call.Version = true
		}
	}
	rest, err := options(args, globalValues, commands, global)
	if err != nil || len(rest) == 0 {
		return call, err
	}
	call.Command = rest[0]
	if call.createsContainer() {
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
		return fmt.Errorf("%s: the command line has no container ID", c.Command)
	case len(unknown) > 0:
		return fmt.Errorf("%s: the command line has several container IDs, %q: if --%s has a value, put a \"=\" before it",
			c.Command, ids, unknown[0])
	default:
		return fmt.Errorf("%s: the command line has several container IDs, %q", c.Command, ids)
	}
}

// options reads the options at the beginning of args and returns the rest. An unknown option takes
// the next word as its value if follow is set, and the word is neither an option nor in follow.
func options(args, values, follow []string, found func(name, value string)) ([]string, error) {
	for len(args) > 0 {
		name, isOption := strings.CutPrefix(args[0], "-")
		if !isOption || name == "" { // "-" is an argument
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
				return nil, fmt.Errorf("the option %s has no value", word)
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
