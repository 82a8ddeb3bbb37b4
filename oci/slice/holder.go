package slice

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/limiter"
)

// claimName is the file of a claim's folder that says by what its container is found. It
// is the runtime wrapper's, in its form: the wrapper gives back such claims too, when
// their containers are gone without a word (ociruntime, record.go).
const claimName = "runtime.json"

// claimRecord is that file.
type claimRecord struct {
	Nonce        string   `json:"nonce"`
	Creator      process  `json:"creator"` // here the container's first process
	PIDNamespace uint64   `json:"pidNamespace"`
	Roots        []string `json:"roots"`
	Runtime      string   `json:"runtime"`
	Bundle       string   `json:"bundle"`
	Slice        string   `json:"slice"`
}

// process identifies a process: its number may come again, not with the same start.
type process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // in clock ticks since boot: field 22 of proc_pid_stat(5)
}

// errEnded says that a process has ended.
var errEnded = errors.New("the process has ended")

// identify finds out a process' start.
func identify(pid int) (process, error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return process{}, errEnded
	}
	if err != nil {
		return process{}, err
	}
	// The second field is the name, in parentheses; it may hold any character.
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 20 {
		return process{}, fmt.Errorf("/proc/%d/stat has too few fields", pid)
	}
	if strings.ContainsAny(fields[0], "ZXx") {
		return process{}, errEnded
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	return process{pid, start}, err
}

// lives says whether it is there still; what can't be found out counts as yes.
func (p process) lives() bool {
	now, err := identify(p.PID)
	return err == nil && now == p || err != nil && !errors.Is(err, errEnded)
}

// pidNamespace is the number of this process' PID namespace.
func pidNamespace() (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &st); err != nil {
		return 0, fmt.Errorf("look at the PID namespace: %w", err)
	}
	return st.Ino, nil
}

// holder is the claim that has a slice.
type holder struct {
	id  string
	dir string
}

// holderOf finds who has a slice: the claim whose limits are the slice's own file. Nil is
// nobody. So the ledger is the one book of it, and nothing else has to agree with it.
func holderOf(ctx context.Context, stateDir, name string) (*holder, error) {
	ours, err := os.Lstat(filepath.Join(Folder(stateDir, name), limitsName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find who has slice %s: %w", name, err)
	}
	ledger, err := grant.OpenReadOnly(stateDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find who has slice %s: %w", name, err)
	}
	now, err := ledger.Snapshot(ctx)
	if err != nil {
		return nil, fmt.Errorf("find who has slice %s: %w", name, err)
	}
	for _, e := range now.Entries {
		dir := ledger.Folder(e.ContainerID)
		theirs, err := os.Lstat(filepath.Join(dir, limitsName))
		if err == nil && os.SameFile(ours, theirs) {
			return &holder{e.ContainerID, dir}, nil
		}
	}
	return nil, nil
}

// alive says whether the container of a claim is there. What can't be found out counts
// as yes.
func (h *holder) alive() bool {
	r, err := readClaim(h.dir)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist) || exists(h.dir)
	}
	namespace, err := pidNamespace()
	if err != nil || namespace != r.PIDNamespace || r.Creator.lives() {
		return true
	}
	used, err := limiter.UsageInUse(filepath.Join(h.dir, usageName))
	return used || err != nil && !errors.Is(err, fs.ErrNotExist)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// readClaim reads the record of a claim's folder.
func readClaim(dir string) (claimRecord, error) {
	var r claimRecord
	data, err := os.ReadFile(filepath.Join(dir, claimName))
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(data, &r)
}
