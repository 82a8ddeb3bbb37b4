package main

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// host is the machine that libraries are taken from.
type host struct {
	// directories are where its loader looks by itself, the first one first.
	dirs []string
}

// machine is this one. Debian's loader has its own directory of the architecture in front of the others.
var machine = host{dirs: []string{
	"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
	"/lib64", "/usr/lib64", "/lib", "/usr/lib",
}}

// driverNeeds are what NVIDIA's libraries, which are mounted into the agent's container, are linked
// against, and our programs may not be.
var driverNeeds = []string{"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1"}

// closure is what programs need to be started: their loader and their libraries, and what these need. It
// is by the path where the loader finds it, with the file of that content.
func (h host) closure(programs []string, libraries ...string) (map[string]string, error) {
	found := map[string]string{}
	todo := append([]string(nil), libraries...)
	for _, program := range programs {
		interpreter, needed, err := linked(program)
		if err != nil {
			return nil, err
		}
		if interpreter == "" {
			continue // static
		}
		found[strings.TrimPrefix(interpreter, "/")] = interpreter
		todo = append(todo, needed...)
	}
	seen := map[string]bool{}
	for len(todo) > 0 {
		name := todo[0]
		todo = todo[1:]
		if seen[name] {
			continue
		}
		seen[name] = true
		file, err := h.find(name)
		if err != nil {
			return nil, err
		}
		_, needed, err := linked(file)
		if err != nil {
			return nil, err
		}
		todo = append(todo, needed...)
		if _, loader := found[strings.TrimPrefix(file, "/")]; !loader && !isLoader(name) {
			found[strings.TrimPrefix(file, "/")] = file
		}
	}
	return found, nil
}

// isLoader says whether a library is the loader, which is at its own place already.
func isLoader(name string) bool { return strings.HasPrefix(path.Base(name), "ld-linux") }

// find is where the loader finds a library.
func (h host) find(name string) (string, error) {
	if strings.Contains(name, "/") {
		return "", fmt.Errorf("%s is linked by its path: only libraries by name can be packed", name)
	}
	for _, dir := range h.dirs {
		file := filepath.Join(dir, name)
		if _, err := os.Stat(file); err == nil {
			return file, nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	return "", fmt.Errorf("library %s is in none of %s", name, strings.Join(h.dirs, ", "))
}

// linked reads which loader a file wants, which a library does not, and which libraries.
func linked(file string) (interpreter string, needed []string, err error) {
	f, err := elf.Open(file)
	if err != nil {
		return "", nil, fmt.Errorf("%s: %w", file, err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		data, err := io.ReadAll(p.Open())
		if err != nil {
			return "", nil, fmt.Errorf("%s: read its loader's name: %w", file, err)
		}
		interpreter = strings.TrimRight(string(data), "\x00")
	}
	needed, err = f.ImportedLibraries()
	if err != nil {
		return "", nil, fmt.Errorf("%s: read what it is linked against: %w", file, err)
	}
	return interpreter, needed, nil
}
