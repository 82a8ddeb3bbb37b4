package hostinstall

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/gpuslice/gpuslice/cmd/internal/doctor"
)

// Options say what to install and where. Every path is absolute, and the host's.
type Options struct {
	// Engine is docker, containerd or podman.
	Engine string
	// Root is the host's root directory; "/" is this machine.
	Root string
	// Config is the engine's configuration file; empty for its usual one.
	Config string
	// RuntimePath is where gpuslice-runtime is, or is copied to.
	RuntimePath string
	// SetDefault makes gpuslice the engine's default runtime.
	SetDefault bool
	// Hooks also installs HookFiles for podman's containers of other runtimes.
	Hooks     bool
	HookFiles fs.FS
	// From is a directory of this machine that the programs and the limiter's libraries
	// are copied from; empty copies no program.
	From string
	// Library is the limiter's file, and LibraryDir where it is installed to.
	Library, LibraryDir string
	// ContainerdVersion is asked of containerd if it is empty.
	ContainerdVersion string
	// ExemptNamespaces are Kubernetes namespaces in which pods may have whole GPUs: the
	// agent's own. StateDir is the agent's.
	ExemptNamespaces []string
	StateDir         string
	// RequireAgent makes containerd start no pod while the agent isn't connected.
	RequireAgent bool
	// RequireNvidia fails where no handler of containerd runs NVIDIA's runtime.
	RequireNvidia bool
	// DryRun shows what would be done.
	DryRun bool
	// NRIOnly leaves out the runtime, and its programs: of containerd only what NRI needs
	// for the agent is set.
	NRIOnly bool
	// ShowDiff shows what is done, as DryRun does.
	ShowDiff bool
}

func (o Options) config(usual string) string {
	if o.Config == "" {
		return usual
	}
	return path.Clean(o.Config)
}

// Engines are the engines that can be named.
func Engines() []string { return []string{"docker", "containerd", "podman"} }

// job is an installation or its removal under way.
type job struct {
	Options
	host host
	view *doctor.Machine // the same host, to read
	lock *os.File        // nil where nothing is written
	out  io.Writer
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
		return nil, fmt.Errorf("the host's root directory: %w", err)
	}
	view, err := doctor.NewMachine(h.root)
	if err != nil {
		return nil, fmt.Errorf("the host's root directory: %w", err)
	}
	if h.root == "/" && os.Geteuid() != 0 && !o.DryRun {
		return nil, errors.Join(errors.New("the host's files are root's: run it as root (`--dry-run` shows what it would do)"), view.Close())
	}
	if o.Engine == "containerd" && o.ContainerdVersion == "" {
		// If it can't be asked, the files decide.
		o.ContainerdVersion, _ = view.Output(ctx, "containerd", "--version")
	}
	j := &job{Options: o, host: h, view: view, out: out}
	if !o.DryRun {
		if j.lock, err = h.lock(recordDir); err != nil {
			j.close()
			return nil, fmt.Errorf("wait for another install: %w%s", err, hint(err))
		}
	}
	return j, nil
}

// Install puts gpuslice into an engine's configuration.
func Install(ctx context.Context, o Options, out io.Writer) error {
	j, err := newJob(ctx, o, out)
	if err != nil {
		return err
	}
	defer j.close()
	p, err := planners[o.Engine](j.view, j.Options)
	if err != nil {
		return err
	}
	r, err := j.record()
	if err != nil {
		return err
	}
	edits, err := j.edits(p)
	if err != nil {
		return err
	}
	if !o.NRIOnly {
		if err := j.programs(); err != nil {
			return err
		}
	}
	changed := false
	for _, e := range edits {
		if e.changes() {
			changed = true
			r.add(e.record)
		}
	}
	if changed {
		// First, so that uninstall knows of a change that is cut off.
		if err := j.keep(r); err != nil {
			return err
		}
	}
	if !changed {
		p.notes = nil // they were given when it was done
	}
	return j.finish(edits, p.notes)
}

// edits are what a plan changes, checked as a whole.
func (j *job) edits(p plan) (edits []edit, err error) {
	after := overlay{FS: j.view, files: map[string][]byte{}}
	for _, t := range p.targets {
		before, err := j.host.read(t.path)
		if err != nil {
			return nil, err
		}
		e, err := t.install(before)
		if err != nil {
			return nil, err
		}
		edits = append(edits, e)
		after.files[t.path] = e.after
	}
	if p.check != nil {
		if err := p.check(after); err != nil {
			return nil, err
		}
	}
	return edits, nil
}

// Uninstall takes out what Install has put in.
func Uninstall(ctx context.Context, o Options, out io.Writer) error {
	o.SetDefault, o.Hooks = true, true // whatever it was, it goes
	j, err := newJob(ctx, o, out)
	if err != nil {
		return err
	}
	defer j.close()
	r, err := j.record()
	if err != nil {
		return err
	}
	hasRecord := len(r.Files) > 0
	if !hasRecord {
		p, err := planners[o.Engine](j.view, j.Options)
		if err != nil {
			return err
		}
		r = assumed(o.Engine, p, j.view)
	}
	var (
		edits   []edit
		notes   []string
		changed bool
	)
	for _, f := range r.Files {
		e, err := j.takeBack(f)
		if err != nil {
			return err
		}
		if !hasRecord {
			e.kept = nil // what isn't as we would have set it was never ours
		}
		for _, key := range e.kept {
			notes = append(notes, strings.TrimSpace(f.Path+" "+dotted(key))+" was changed since, and is left as it is")
		}
		changed = changed || e.changes()
		edits = append(edits, e)
	}
	if err := j.defaultStays(edits); err != nil {
		return err
	}
	if changed {
		notes = append(notes, afterUninstall(o.Engine, edits)...)
		notes = append(notes, j.RuntimePath+" and "+j.LibraryDir+" stay: containers that run can't be ended without the one, and have the other mounted")
	}
	if err := j.finish(edits, notes); err != nil || j.DryRun || !hasRecord {
		return err
	}
	return j.forget()
}

// afterUninstall says what makes an engine see that something is gone.
func afterUninstall(engine string, edits []edit) []string {
	switch engine {
	case "docker":
		const first = "; remove the containers of this runtime first: they can't be started again"
		if slices.ContainsFunc(edits, losesDefault) {
			return []string{"run `systemctl restart docker`, not reload, which would keep gpuslice as the default runtime (and docker 20.10 ends itself over that)" + first}
		}
		return []string{"run `systemctl reload docker`" + first}
	case "containerd":
		return []string{"run `systemctl restart containerd` (containers go on running)"}
	}
	return nil
}

// losesDefault says whether daemon.json names a default runtime no more.
func losesDefault(e edit) bool {
	names := func(text []byte) bool {
		d, err := jsonFormat{}.parse(text)
		if err != nil {
			return false
		}
		_, ok := d.tree()["default-runtime"]
		return ok
	}
	return e.changes() && names(e.before) && !names(e.after)
}

// finish does the edits, or shows them.
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
			fmt.Fprintln(j.out, strings.TrimRight(word(e)+"  "+e.path+in(backup), " "))
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

func word(e edit) string {
	switch {
	case e.before == nil:
		return "made     "
	case e.after == nil:
		return "removed  "
	}
	return "changed  "
}

func in(backup string) string {
	if backup == "" {
		return ""
	}
	return "  (backup: " + backup + ")"
}

// hint says what to do about an error of the file system.
func hint(err error) string {
	for _, h := range []struct {
		err  error
		what string
	}{
		{errFull, "make room and try again; nothing was lost"},
		{errReadOnly, "its file system is read-only: make it writable, or change the configuration where the system's image is made"},
		{fs.ErrPermission, "run it as root; if it is root, look for an immutable attribute (lsattr) or a security module's denial"},
	} {
		if errors.Is(err, h.err) {
			return ": " + h.what
		}
	}
	return ""
}
