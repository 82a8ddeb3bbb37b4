package main

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// libraryDirs are the search path of Debian's loader.
var libraryDirs = []string{
	"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
	"/lib64", "/usr/lib64", "/lib", "/usr/lib",
}

// driverNeeds are the libraries of NVIDIA's libraries, which are mounted into the agent's container.
var driverNeeds = []string{"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1"}

// closure returns the paths of the loader and of all needed libraries.
func closure(dirs, programs []string, libraries ...string) (files []string, err error) {
	pending := slices.Clone(libraries)
	for _, program := range programs {
		interpreter, needed, err := linked(program)
		if err != nil {
			return nil, err
		}
		if interpreter != "" && !slices.Contains(files, interpreter) { // else it is static
			files = append(files, interpreter)
		}
		pending = append(pending, needed...)
	}
	seen := map[string]bool{}
	for len(pending) > 0 {
		name := pending[0]
		pending = pending[1:]
		if seen[name] {
			continue
		}
		seen[name] = true
		file, err := find(dirs, name)
		if err != nil {
			return nil, err
		}
		_, needed, err := linked(file)
		if err != nil {
			return nil, err
		}
		pending = append(pending, needed...)
		if !strings.HasPrefix(name, "ld-linux") { // the loader has its own path, from the programs
			files = append(files, file)
		}
	}
	return files, nil
}

// find looks up a library as the loader does.
func find(dirs []string, name string) (string, error) {
	if strings.Contains(name, "/") {
		return "", fmt.Errorf("%s is linked by its path: only libraries that are linked by name are supported", name)
	}
	for _, dir := range dirs {
		file := filepath.Join(dir, name)
		if _, err := os.Stat(file); err == nil {
			return file, nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	return "", fmt.Errorf("library %s not found in %s", name, strings.Join(dirs, ", "))
}

// linked reads a file's loader and libraries.
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
			return "", nil, fmt.Errorf("%s: read the name of its loader: %w", file, err)
		}
		interpreter = strings.TrimRight(string(data), "\x00")
	}
	if needed, err = f.ImportedLibraries(); err != nil {
		return "", nil, fmt.Errorf("%s: read its libraries: %w", file, err)
	}
	return interpreter, needed, nil
}
