package request

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/internal/rawfile"
)

// maxConfigBytes is more than any config has.
const maxConfigBytes = 1 << 20

// maxLinks bounds how many symbolic links a path may have, as the kernel does.
const maxLinks = 40

// sticky says that in a directory everybody's files are his own.
const sticky = fs.ModeSticky

// owners are users and groups that may write the config.
type owners []uint32

func (o owners) has(id uint32) bool { return slices.Contains(o, id) }

// rootOf is root, as this process sees it. In a user namespace (rootless podman and docker)
// the machine's root is nobody: an id that is not mapped.
func rootOf(proc string) owners {
	root := owners{0}
	mapped, err := rawfile.Read(filepath.Join(proc, "self/uid_map"))
	if err != nil || strings.Join(strings.Fields(string(mapped)), " ") == "0 0 4294967295" {
		return root // not in one; without the file root alone is trusted
	}
	text, err := rawfile.Read(filepath.Join(proc, "sys/kernel/overflowuid"))
	if err != nil {
		return root
	}
	nobody, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
	if err != nil {
		return root
	}
	return append(root, uint32(nobody))
}

// readTrusted reads a file that nobody but its owner, and the group 0, can change: not
// the file, and no directory or link on the way to it. Who could would set his own limits.
func readTrusted(path string, root owners) ([]byte, error) {
	real, err := walk(path, root)
	if err != nil {
		return nil, err
	}
	// O_NONBLOCK: a FIFO must not stop everybody's containers.
	file, err := rawfile.OpenFile(real, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("is not a plain file")
	}
	if err := checkOwner(real, info, root); err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(file, maxConfigBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxConfigBytes {
		return nil, fmt.Errorf("has more than %d bytes", maxConfigBytes)
	}
	return data, nil
}

// walk follows a path as the kernel would, and returns it without symbolic links. Every
// directory on the way is checked.
func walk(path string, root owners) (string, error) {
	current, rest := "/", split(path)
	for links := 0; ; {
		info, err := os.Lstat(current)
		if err != nil {
			return "", err
		}
		if len(rest) == 0 {
			return current, nil
		}
		if !info.IsDir() {
			return "", fmt.Errorf("%s is not a directory", current)
		}
		if err := checkOwner(current, info, root); err != nil {
			return "", err
		}
		next := filepath.Join(current, rest[0]) // ".." too: current has no links
		rest = rest[1:]
		info, err = os.Lstat(next)
		if err != nil {
			return "", err
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			current = next
			continue
		}
		target, err := os.Readlink(next)
		if err != nil {
			return "", err
		}
		if links++; links > maxLinks {
			return "", errors.New("has too many symbolic links")
		}
		if filepath.IsAbs(target) {
			current = "/"
		}
		rest = append(split(target), rest...)
	}
}

func split(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
}

// checkOwner refuses what others can change. In a sticky directory nobody can take the place
// of another's file.
func checkOwner(path string, info fs.FileInfo, root owners) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("%s: its owner is not known", path)
	}
	if !root.has(stat.Uid) {
		return fmt.Errorf("%s belongs to user %d, who could set his own limits: chown root %s", path, stat.Uid, path)
	}
	if info.IsDir() && info.Mode()&sticky != 0 {
		return nil
	}
	mode := info.Mode().Perm()
	if mode&0o002 != 0 {
		return fmt.Errorf("%s can be written by everybody (mode %04o), who could set their own limits: chmod o-w %s", path, mode, path)
	}
	if mode&0o020 != 0 && !root.has(stat.Gid) {
		return fmt.Errorf("%s can be written by group %d (mode %04o), who could set their own limits: chmod g-w %s", path, stat.Gid, mode, path)
	}
	return nil
}
