// Package hostinstall adds gpuslice to the configuration of container engines, and removes it. Settings are in
// drop-in files if the engine reads such files, else in its own file, which keeps comments and layout.
// Uninstall reverts the changes in a [record]; an install first reverts those of the last one.
package hostinstall

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/diff"
	"golang.org/x/sys/unix"

	"github.com/gpuslice/gpuslice/cmd/internal/doctor"
	"github.com/gpuslice/gpuslice/internal/atomicfile"
)

// Options are the options of an install. Every path is absolute, and inside Root.
type Options struct {
	Engine string // docker, containerd or podman
	// Root is the host's root directory; "/" is this machine.
	Root        string
	Config      string // the engine's configuration file; empty for the default
	RuntimePath string
	SetDefault  bool
	// Hooks also installs HookFiles for podman's containers of other runtimes.
	Hooks     bool
	HookFiles fs.FS
	// From is a directory of this machine with programs and libraries to copy; it can be empty.
	From string
	// Library is the limiter, which is installed to LibraryDir.
	Library, LibraryDir string
	// ContainerdVersion is read from containerd if it is empty.
	ContainerdVersion string
	// ExemptNamespaces are Kubernetes namespaces of pods that may use whole GPUs, such as the agent's.
	ExemptNamespaces []string
	StateDir         string
	// RequireAgent makes containerd refuse pods while the agent is not connected.
	RequireAgent bool
	// RequireNvidia fails if no handler of containerd runs NVIDIA's runtime.
	RequireNvidia bool
	DryRun        bool
	// AgentUnit is the systemd unit of the agent; nil: none.
	AgentUnit []byte
	// Start starts the agent's unit.
	Start bool
	// Systemctl runs systemctl on this machine; nil: it is not run.
	Systemctl func(ctx context.Context, args ...string) error
	// NRIOnly configures only containerd's NRI.
	NRIOnly  bool
	ShowDiff bool
}

func (o Options) config(usual string) string {
	if o.Config == "" {
		return usual
	}
	return path.Clean(o.Config)
}

func Engines() []string { return []string{"docker", "containerd", "podman"} }

type job struct {
	Options
	host host
	view *doctor.Machine // the same host, for reading
	lock *os.File
	out  io.Writer
}

// edit is the change of a file; nil is no file.
type edit struct {
	path          string
	before, after []byte
	// noBackup: all content is gpuslice's.
	noBackup bool
}

func (e edit) changes() bool {
	return (e.before == nil) != (e.after == nil) || !bytes.Equal(e.before, e.after)
}

func (j *job) close() {
	j.view.Close()
	if j.lock != nil {
		j.lock.Close()
	}
}

func newJob(ctx context.Context, o Options, out io.Writer) (*job, error) {
	if planners[o.Engine] == nil {
		return nil, fmt.Errorf("unknown engine %q", o.Engine)
	}
	h, err := newHost(o.Root)
	if err != nil {
		return nil, fmt.Errorf("open the host's root directory: %w", err)
	}
	view, err := doctor.NewMachine(h.root)
	if err != nil {
		return nil, fmt.Errorf("open the host's root directory: %w", err)
	}
	if h.root == "/" && os.Geteuid() != 0 && !o.DryRun {
		return nil, errors.Join(errors.New("only root can change the host's files: run it as root (`--dry-run` shows the changes)"), view.Close())
	}
	if o.Engine == "containerd" && o.ContainerdVersion == "" {
		o.ContainerdVersion, _ = view.Output(ctx, "containerd", "--version")
	}
	j := &job{Options: o, host: h, view: view, out: out}
	if !o.DryRun {
		if j.lock, err = h.lock(recordDir); err != nil {
			j.close()
			return nil, fmt.Errorf("wait for another install to end: %w%s", err, hint(err))
		}
	}
	return j, nil
}

// Install adds gpuslice to an engine's configuration.
func Install(ctx context.Context, o Options, out io.Writer) error {
	j, err := newJob(ctx, o, out)
	if err != nil {
		return err
	}
	defer j.close()
	old, err := j.record()
	if err != nil {
		return err
	}
	j.SetDefault, j.RequireAgent = o.SetDefault || old.SetDefault, o.RequireAgent || old.RequireAgent
	if o.NRIOnly && old.RuntimePath != "" {
		j.NRIOnly, j.RuntimePath = false, old.RuntimePath
	}
	edits, next, notes, err := j.edits(old)
	if err != nil {
		return err
	}
	if !o.NRIOnly {
		if err := j.programs(); err != nil {
			return err
		}
	}
	// First the record, so that uninstall can revert an interrupted install.
	if err := j.keep(old, next); err != nil {
		return err
	}
	if !slices.ContainsFunc(edits, edit.changes) {
		notes = nil // printed before
	}
	if err := j.finish(edits, notes); err != nil || !o.Start || o.DryRun {
		return err
	}
	return j.startAgent(ctx, next)
}

// clean returns a file's text, and that without gpuslice's settings.
func (j *job) clean(f fileRecord) (now []byte, u undone, err error) {
	if now, err = j.host.read(f.Path); err != nil {
		return nil, u, err
	}
	var backup []byte
	if f.Backup != "" {
		if backup, err = j.host.read(f.Backup); err != nil || f.Backup != backupOf(strings.Split(f.Backup, ".gpuslice-backup-")[0], backup) {
			backup = nil
		}
	}
	u, err = f.undo(j.Engine, now, backup)
	return now, u, err
}

// edits replaces the settings of the last install by those of a new plan.
func (j *job) edits(old record) (edits []edit, next record, notes []string, err error) {
	next = record{Version: recordVersion, Engine: j.Engine, SetDefault: j.SetDefault, RequireAgent: j.RequireAgent}
	if !j.NRIOnly {
		next.RuntimePath = j.RuntimePath
	}
	without := overlay{FS: j.view, files: map[string][]byte{}}
	exact := map[string]bool{}
	for _, f := range old.Files {
		if f.Whole {
			next.Files = append(next.Files, f)
			continue
		}
		now, u, err := j.clean(f)
		if err != nil {
			return nil, next, nil, err
		}
		without.files[f.Path], exact[f.Path] = u.text, u.exact
		edits = append(edits, edit{path: f.Path, before: now, after: u.text, noBackup: now != nil && f.Seed != "" && sum(now) == f.SHA256})
	}
	p, err := planners[j.Engine](without, j.Options)
	if err != nil {
		return nil, next, nil, err
	}
	after := overlay{FS: j.view, files: map[string][]byte{}}
	for _, t := range p.targets {
		real, err := j.host.real(t.path)
		if err != nil {
			return nil, next, nil, err
		}
		// Because of links, the path in the record can differ.
		i := slices.IndexFunc(edits, func(e edit) bool { same, err := j.host.real(e.path); return err == nil && same == real })
		if i >= 0 {
			t.path = edits[i].path
		} else {
			now, err := j.host.read(t.path)
			if err != nil {
				return nil, next, nil, err
			}
			i, edits, exact[t.path] = len(edits), append(edits, edit{path: t.path, before: now, after: now}), true
		}
		f, err := j.edit(&edits[i], t, old.file(t.path), exact[t.path])
		have := next.file(t.path)
		switch {
		case err != nil:
			return nil, next, nil, err
		case have != nil:
			*have = f
		case f.Whole || len(f.Changes) > 0:
			next.Files = append(next.Files, f)
		}
	}
	slices.SortFunc(next.Files, func(a, b fileRecord) int { return strings.Compare(a.Path, b.Path) })
	for _, e := range edits {
		after.files[e.path] = e.after
	}
	if p.check != nil {
		err = p.check(after)
	}
	return edits, next, p.notes, err
}

// edit applies a target. exact: e.after is the text before the first install.
func (j *job) edit(e *edit, t target, old *fileRecord, exact bool) (f fileRecord, err error) {
	f = fileRecord{Path: t.path}
	if t.whole != nil {
		e.after, f.Whole, f.SHA256 = t.whole, true, sum(t.whole)
		return f, nil
	}
	text := e.after
	switch {
	case text == nil:
		f.Seed, text = t.seed, []byte(t.seed)
	case exact:
		real, err := j.host.real(t.path)
		if err != nil {
			return f, err
		}
		f.Backup = backupOf(j.host.inside(real), text)
	case old != nil:
		f.Seed = old.Seed
	}
	d, err := parse(j.Engine, text)
	if err != nil {
		return f, fmt.Errorf("%s is not valid and was not changed: %w", t.path, err)
	}
	if f.Changes, err = apply(d, t.settings); err != nil {
		return f, fmt.Errorf("%s: %w", t.path, err)
	}
	if f.Seed != "" || !bytes.Equal(text, d.text()) && len(f.Changes) > 0 {
		e.after = d.text()
	}
	if old != nil && e.before != nil && sameContent(j.Engine, e.before, e.after) {
		e.after, f = e.before, *old // do not move settings that another program moved
	}
	if f.SHA256 == "" {
		f.SHA256 = sum(e.after)
	}
	return f, nil
}

func sameContent(engine string, a, b []byte) bool {
	old, errOld := treeOf(engine, a)
	now, errNow := treeOf(engine, b)
	return errOld == nil && errNow == nil && equal(old, now)
}

func Uninstall(ctx context.Context, o Options, out io.Writer) error {
	o.SetDefault, o.Hooks = true, true
	j, err := newJob(ctx, o, out)
	if err != nil {
		return err
	}
	defer j.close()
	r, err := j.record()
	if err != nil {
		return err
	}
	var (
		edits []edit
		notes []string
	)
	hasRecord := len(r.Files) > 0
	if !hasRecord {
		if r, edits, err = j.withoutRecord(); err != nil {
			return err
		}
	}
	for _, f := range r.Files {
		if f.Path == agentUnit {
			kept, err := j.keepAgent(ctx)
			if err != nil {
				return err
			}
			if kept {
				continue
			}
		}
		now, u, err := j.clean(f)
		if err != nil {
			return err
		}
		for _, key := range u.kept {
			if hasRecord {
				notes = append(notes, strings.TrimSpace(f.Path+" "+dotted(key))+" was changed since the install and was not removed")
			}
		}
		edits = append(edits, edit{path: f.Path, before: now, after: u.text, noBackup: u.text == nil})
	}
	if err := j.checkDefault(edits); err != nil {
		return err
	}
	if slices.ContainsFunc(edits, edit.changes) {
		notes = append(notes, afterUninstall(o.Engine, edits)...)
		notes = append(notes, j.RuntimePath+" and "+j.LibraryDir+" were not removed: running containers need them")
	}
	if err := j.finish(edits, notes); err != nil || j.DryRun || !hasRecord {
		return err
	}
	return j.forget()
}

// withoutRecord finds drop-in files, and settings with gpuslice's name in other files.
func (j *job) withoutRecord() (r record, edits []edit, err error) {
	p, err := planners[j.Engine](j.view, j.Options)
	if err != nil {
		return r, nil, err
	}
	for _, t := range p.targets {
		now, err := j.host.read(t.path)
		if err != nil {
			return r, nil, err
		}
		f := fileRecord{Path: t.path}
		switch {
		case t.whole != nil:
			f.Whole, f.SHA256 = true, sum(t.whole)
		case t.dropIn && bytes.HasPrefix(now, []byte(t.seed)):
			edits = append(edits, edit{path: t.path, before: now})
			continue
		}
		for _, s := range t.settings {
			if s.isNamed() {
				c := change{Key: s.key, Tables: len(s.key) - 1}
				if s.value == Name {
					c.Set = encoded(Name)
				}
				f.Changes = append(f.Changes, c)
			}
		}
		r.Files = append(r.Files, f)
	}
	return r, edits, nil
}

func afterUninstall(engine string, edits []edit) []string {
	switch engine {
	case "docker":
		const first = "; remove the containers of this runtime first: they can't be started again"
		if slices.ContainsFunc(edits, removesDefault) {
			return []string{"run `systemctl restart docker`; after a reload gpuslice would still be the default runtime, and docker 20.10 would end" + first}
		}
		return []string{"run `systemctl reload docker`" + first}
	case "containerd":
		return []string{"run `systemctl restart containerd` (containers continue to run)"}
	}
	return nil
}

func removesDefault(e edit) bool {
	hasDefault := func(text []byte) bool {
		tree, err := treeOf("docker", text)
		return err == nil && tree["default-runtime"] != nil
	}
	return hasDefault(e.before) && !hasDefault(e.after)
}

func (j *job) finish(edits []edit, notes []string) error {
	for _, e := range edits {
		if e.changes() && (j.DryRun || j.ShowDiff) {
			fmt.Fprintf(j.out, "%s", diff.Diff(sideName(e.path, e.before), e.before, sideName(e.path, e.after), e.after))
		}
		switch {
		case !e.changes():
			if e.before != nil {
				fmt.Fprintf(j.out, "unchanged  %s\n", e.path)
			}
		case !j.DryRun:
			backup, err := j.host.commit(e)
			if err != nil {
				return fmt.Errorf("%w%s", err, hint(err))
			}
			word := "changed"
			if e.before == nil {
				word = "created"
			} else if e.after == nil {
				word = "removed"
			}
			if backup != "" {
				backup = "  (backup: " + backup + ")"
			}
			fmt.Fprintf(j.out, "%-9s  %s%s\n", word, e.path, backup)
		}
	}
	for _, n := range notes {
		fmt.Fprintf(j.out, "note: %s\n", n)
	}
	if j.DryRun {
		fmt.Fprintln(j.out, "nothing was changed (--dry-run)")
	}
	return nil
}

func sideName(path string, content []byte) string {
	if content == nil {
		return "/dev/null"
	}
	return path
}

func (j *job) record() (record, error) {
	data, err := j.host.read(recordPath(j.Engine))
	if err != nil || data == nil {
		return record{}, err
	}
	r, err := decodeRecord(data)
	if err != nil {
		return r, fmt.Errorf("read the record %s of what uninstall has to revert: %w", recordPath(j.Engine), err)
	}
	return r, nil
}

func (j *job) keep(old, next record) error {
	before, err := old.encode()
	if err != nil {
		return err
	}
	data, err := next.encode()
	if err != nil || j.DryRun || bytes.Equal(before, data) {
		return err
	}
	real, err := j.host.real(recordPath(j.Engine))
	if err == nil {
		err = os.MkdirAll(filepath.Dir(real), 0o755)
	}
	if err == nil {
		err = atomicfile.WriteSync(real, data, 0o644)
	}
	if err != nil {
		return fmt.Errorf("write the record of the changes: %w%s", err, hint(err))
	}
	return nil
}

func (j *job) forget() error {
	real, err := j.host.real(recordPath(j.Engine))
	if err != nil {
		return err
	}
	return errors.Join(os.Remove(real), syncDir(filepath.Dir(real)))
}

func hint(err error) string {
	for _, h := range []struct {
		err  error
		what string
	}{
		{unix.ENOSPC, "free some space and try again; nothing was lost"},
		{unix.EROFS, "its file system is read-only: make it writable, or change the configuration in the system's image"},
		{fs.ErrPermission, "run it as root; if you are root, look for an immutable attribute (lsattr) or a denial of a security module"},
	} {
		if errors.Is(err, h.err) {
			return ": " + h.what
		}
	}
	return ""
}
