package oci

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"
	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

// DefaultKind is the CDI kind of NVIDIA's GPUs, as nvidia-ctk generates it.
const DefaultKind = "nvidia.com/gpu"

// RegistryConfig says where the CDI specs of a node's GPUs are.
type RegistryConfig struct {
	// Kind is the CDI kind (vendor/class) of GPUs; empty is DefaultKind.
	Kind string
	// Dirs are the directories of CDI specs, a later one winning over an earlier one;
	// none are CDI's own, /etc/cdi and /var/run/cdi.
	Dirs []string
	// Interval is how often Run looks whether a spec changed; 0 is a second.
	Interval time.Duration
	// Log is told of specs that changed and that can't be read; nil is silence.
	Log *slog.Logger
}

// Registry resolves GPUs by the node's CDI specs.
//
// A lookup reads a snapshot in memory. [Registry.Run] keeps the snapshot current:
// it compares names, sizes and times of the spec files, and reads them when one
// changed. CDI's own cache can refresh itself too, and isn't let to: it then needs
// an inotify instance (short on many nodes; without one it reads every spec at
// every lookup), tries to watch a missing directory again at every lookup, and may
// read a spec that is half written.
type Registry struct {
	kind string
	dirs []string
	wait time.Duration
	log  *slog.Logger
	stat func(path string) (nodeInfo, error)
	now  func() time.Time

	current atomic.Pointer[snapshot]

	mu      sync.Mutex // held while the specs are read
	cache   *cdi.Cache
	checked time.Time // of the last comparison
}

var _ DeviceEdits = (*Registry)(nil)

// snapshot is what the specs said when they were last read. It doesn't change.
type snapshot struct {
	devices map[string]gpuEdits // by CDI device name, without the kind
	errs    []error             // of spec files that can't be used
	files   []specFile
}

// gpuEdits are the edits of one GPU: its spec's common ones and its own.
type gpuEdits struct {
	common, own *cdispec.ContainerEdits
}

// NewRegistry reads the specs once. Specs that can't be read are no error here
// but in the lookups that miss a GPU: another spec may have it.
func NewRegistry(cfg RegistryConfig) (*Registry, error) {
	r, err := newRegistry(cfg)
	if err != nil {
		return nil, err
	}
	return r, r.open(listSpecs(r.dirs)) // listed first: what changes while they are read is read again
}

// newRegistry is a registry that has read nothing yet.
func newRegistry(cfg RegistryConfig) (*Registry, error) {
	kind := cfg.Kind
	if kind == "" {
		kind = DefaultKind
	}
	vendor, class := parser.ParseQualifier(kind)
	if err := errors.Join(parser.ValidateVendorName(vendor), parser.ValidateClassName(class)); err != nil {
		return nil, fmt.Errorf("CDI kind %q is not vendor/class: %w", kind, err)
	}
	dirs := cfg.Dirs
	if len(dirs) == 0 {
		dirs = cdi.DefaultSpecDirs
	}
	for _, dir := range dirs {
		if !filepath.IsAbs(dir) {
			return nil, fmt.Errorf("CDI spec directory %q is not an absolute path", dir)
		}
	}
	wait := cfg.Interval
	if wait <= 0 {
		wait = time.Second
	}
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Registry{
		kind: kind, dirs: slices.Clone(dirs), wait: wait, log: log, stat: statNode, now: time.Now,
	}, nil
}

// open reads the specs for the first time. files are as they were before.
func (r *Registry) open(files []specFile) error {
	cache, err := cdi.NewCache(cdi.WithSpecDirs(r.dirs...), cdi.WithAutoRefresh(false))
	if err != nil {
		return fmt.Errorf("open the CDI spec directories %s: %w", strings.Join(r.dirs, ", "), err)
	}
	r.cache, r.checked = cache, r.now()
	r.take(files) // NewCache has read them
	return nil
}

// Run keeps the snapshot current until the context ends. It has one owner.
func (r *Registry) Run(ctx context.Context) {
	tick := time.NewTicker(r.wait)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			r.Refresh()
		}
	}
}

// Refresh reads the specs again if a file changed since they were last read.
func (r *Registry) Refresh() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refresh()
}

// Devices are the CDI names of the kind, without it, sorted.
func (r *Registry) Devices() []string {
	names := make([]string, 0, len(r.current.Load().devices))
	for name := range r.current.Load().devices {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Err says which spec files can't be used, nil if all can.
func (r *Registry) Err() error {
	return errors.Join(r.current.Load().errs...)
}

// DeviceEdits implements the interface DeviceEdits. Device nodes come back with
// what a spec may leave out (type, numbers, mode) filled in from the host's.
func (r *Registry) DeviceEdits(uuids []string) (*cdispec.ContainerEdits, error) {
	now := r.current.Load()
	missing := now.missing(uuids)
	if len(missing) > 0 {
		r.refreshOnMiss()
		now = r.current.Load()
		missing = now.missing(uuids)
	}
	if len(missing) > 0 {
		return nil, r.unresolved(missing, now)
	}

	var all []*cdispec.ContainerEdits
	for _, uuid := range uuids {
		all = append(all, now.devices[uuid].common, now.devices[uuid].own)
	}
	edits := Merge(all...)
	for _, d := range edits.DeviceNodes {
		if err := complete(d, r.stat); err != nil {
			return nil, fmt.Errorf("CDI devices %s: %w", strings.Join(r.qualified(uuids), ", "), err)
		}
	}
	return edits, nil
}

// refresh is Refresh with the lock held.
func (r *Registry) refresh() {
	r.checked = r.now()
	files := listSpecs(r.dirs)
	last := r.current.Load()
	if last != nil && slices.Equal(last.files, files) {
		return
	}
	if r.cache == nil { // what is known came from a file
		if err := r.open(files); err != nil {
			r.log.Warn("CDI specs not read", "error", err)
		}
		return
	}
	_ = r.cache.Refresh() // its errors are read below, by file
	r.take(files)
}

// take makes the snapshot of what CDI's cache has read of those files.
func (r *Registry) take(files []specFile) {
	next := r.read()
	next.files = files
	r.current.Store(next)

	r.log.Info("CDI specs read", "kind", r.kind, "devices", len(next.devices))
	for _, err := range next.errs {
		r.log.Warn("CDI spec not usable", "error", err)
	}
}

// refreshOnMiss looks again where a GPU is missing, but not more often than Run
// does: a spec may have come a moment ago.
func (r *Registry) refreshOnMiss() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.now().Sub(r.checked) >= r.wait {
		r.refresh()
	}
}

// read takes the kind's devices out of CDI's cache.
func (r *Registry) read() *snapshot {
	s := &snapshot{devices: map[string]gpuEdits{}}
	for _, qualified := range r.cache.ListDevices() {
		name, ok := strings.CutPrefix(qualified, r.kind+"=")
		if !ok {
			continue
		}
		if d := r.cache.GetDevice(qualified); d != nil {
			s.devices[name] = gpuEdits{
				common: clone(&d.GetSpec().ContainerEdits),
				own:    clone(&d.ContainerEdits),
			}
		}
	}
	errs := r.cache.GetErrors()
	paths := make([]string, 0, len(errs))
	for path := range errs {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	for _, path := range paths {
		s.errs = append(s.errs, fmt.Errorf("CDI spec %s: %w", path, errors.Join(errs[path]...)))
	}
	return s
}

// missing are the GPUs that a snapshot doesn't have.
func (s *snapshot) missing(uuids []string) []string {
	var missing []string
	for _, uuid := range uuids {
		if _, ok := s.devices[uuid]; !ok {
			missing = append(missing, uuid)
		}
	}
	return missing
}

// unresolved says what is missing where, and how it gets there.
func (r *Registry) unresolved(missing []string, now *snapshot) error {
	names := make([]string, 0, len(now.devices))
	for name := range now.devices {
		names = append(names, name)
	}
	slices.Sort(names)
	err := fmt.Errorf("no CDI device %s in %s (of %s there: %s)",
		strings.Join(r.qualified(missing), ", "), strings.Join(r.dirs, ", "), r.kind, orNone(names))
	if broken := errors.Join(now.errs...); broken != nil {
		err = fmt.Errorf("%w; %w", err, broken)
	}
	if r.kind != DefaultKind {
		_, class := parser.ParseQualifier(r.kind)
		return fmt.Errorf("%w: generate its spec: nvidia-ctk cdi generate --mode=%s --output=%s",
			err, class, filepath.Join(r.dirs[len(r.dirs)-1], "nvidia-"+class+".yaml"))
	}
	return fmt.Errorf("%w: generate the node's spec with GPUs named by UUID: "+
		"gpuslice cdi generate --driver, or nvidia-ctk cdi generate --device-name-strategy=uuid --output=%s",
		err, filepath.Join(r.dirs[len(r.dirs)-1], "nvidia.yaml"))
}

// qualified are full CDI names.
func (r *Registry) qualified(uuids []string) []string {
	names := make([]string, len(uuids))
	for i, uuid := range uuids {
		names[i] = r.kind + "=" + uuid
	}
	return names
}

// specFile is what tells that a spec file was changed.
type specFile struct {
	path    string
	size    int64
	changed int64 // nanoseconds since 1970
}

// listSpecs lists the spec files of directories. A directory that isn't there has none.
func listSpecs(dirs []string) []specFile {
	var files []specFile
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, e := range entries {
			if ext := filepath.Ext(e.Name()); ext != ".json" && ext != ".yaml" {
				continue
			}
			path := filepath.Join(dir, e.Name())
			if info, err := os.Stat(path); err == nil { // a link's target
				files = append(files, specFile{path, info.Size(), info.ModTime().UnixNano()})
			}
		}
	}
	return files
}
