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
)

// maxConfigBytes is more than any config has.
const maxConfigBytes = 1 << 20

// maxLinks is the kernel's limit for one path.
const maxLinks = 40

type owners []uint32

// rootOf returns root's IDs. In a user namespace (rootless engines) the host's root has the overflow
// ID.
func rootOf(proc string) owners {
	root := owners{0}
	mapped, err := os.ReadFile(filepath.Join(proc, "self/uid_map"))
	if err != nil || strings.Join(strings.Fields(string(mapped)), " ") == "0 0 4294967295" {
		return root
	}
	text, _ := os.ReadFile(filepath.Join(proc, "sys/kernel/overflowuid"))
	overflow, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
	if err != nil {
		return root
	}
	return append(root, uint32(overflow))
}

// readTrusted reads a file if only root can change it, every directory, and every link on its path.
func readTrusted(path string, root owners) ([]byte, error) {
	real, err := walk(path, root)
	if err != nil {
		return nil, err
	}
	// O_NONBLOCK: a FIFO must not block.
	file, err := os.OpenFile(real, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("is not a regular file")
	}
	if err := checkOwner(real, info, root); err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(file, maxConfigBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxConfigBytes {
		return nil, fmt.Errorf("is larger than %d bytes", maxConfigBytes)
	}
	return data, nil
}

// walk resolves the symbolic links of a path and checks every directory on it.
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
		next := filepath.Join(current, rest[0]) // correct for "..", because current has no links
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

// checkOwner rejects what other users can change. A sticky directory protects root's files.
func checkOwner(path string, info fs.FileInfo, root owners) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("%s: its owner is unknown", path)
	}
	if !slices.Contains(root, stat.Uid) {
		return fmt.Errorf("%s is owned by user %d, not by root: chown root %s", path, stat.Uid, path)
	}
	if info.IsDir() && info.Mode()&fs.ModeSticky != 0 {
		return nil
	}
	mode := info.Mode().Perm()
	if mode&0o002 != 0 {
		return fmt.Errorf("%s is writable by all users (mode %04o): chmod o-w %s", path, mode, path)
	}
	if mode&0o020 != 0 && !slices.Contains(root, stat.Gid) {
		return fmt.Errorf("%s is writable by group %d (mode %04o): chmod g-w %s", path, stat.Gid, mode, path)
	}
	return nil
}
