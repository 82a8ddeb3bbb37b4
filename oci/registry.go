package oci

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
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

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/internal/atomicfile"
	"github.com/gpuslice/gpuslice/internal/periodic"
	"github.com/gpuslice/gpuslice/internal/rawfile"
)

type RegistryConfig struct {
	// Kind is vendor/class; empty: api.CDIKindDriver.
	Kind string
	// Dirs: a later one has precedence; empty: /etc/cdi and /var/run/cdi.
	Dirs []string
	// Interval of Run; 0: a second.
	Interval time.Duration
	Log      *slog.Logger
}

// Registry resolves GPUs by the node's CDI specs, from a snapshot that [Registry.Run] updates. CDI's own
// refresh needs an inotify instance, and can read half a spec.
type Registry struct {
	kind string
	dirs []string
	wait time.Duration
	log  *slog.Logger
	stat func(path string) (nodeInfo, error)
	now  func() time.Time

	current atomic.Pointer[snapshot]

	mu      sync.Mutex // held while the specs are read
	cache   *cdi.Cache // nil: the snapshot is from a file
	checked time.Time  // of the last comparison
}

var _ DeviceEdits = (*Registry)(nil)

// snapshot is immutable, and saved as JSON.
type snapshot struct {
	Kind  string `json:"cdiKind"`
	Dirs  []string
	Files []specFile
	Specs []specEdits
	errs  []error // of unusable spec files
}

type specEdits struct {
	Common  *cdispec.ContainerEdits
	Devices map[string]*cdispec.ContainerEdits // by CDI device name, without the kind
}

// NewRegistry reads the specs. Unusable specs are an error only in lookups that miss a GPU.
func NewRegistry(cfg RegistryConfig) (*Registry, error) {
	r, err := newRegistry(cfg)
	if err != nil {
		return nil, err
	}
	return r, r.open(listSpecs(r.dirs)) // listed first, so that later changes are seen
}

func newRegistry(cfg RegistryConfig) (*Registry, error) {
	r := &Registry{
		kind: cmp.Or(cfg.Kind, api.CDIKindDriver), dirs: slices.Clone(cfg.Dirs), wait: cmp.Or(max(cfg.Interval, 0), time.Second),
		log: cmp.Or(cfg.Log, slog.New(slog.DiscardHandler)), stat: statNode, now: time.Now,
	}
	vendor, class := parser.ParseQualifier(r.kind)
	if err := errors.Join(parser.ValidateVendorName(vendor), parser.ValidateClassName(class)); err != nil {
		return nil, fmt.Errorf("CDI kind %q is not vendor/class: %w", r.kind, err)
	}
	if len(r.dirs) == 0 {
		r.dirs = slices.Clone(cdi.DefaultSpecDirs)
	}
	for _, dir := range r.dirs {
		if !filepath.IsAbs(dir) {
			return nil, fmt.Errorf("CDI spec directory %q is not an absolute path", dir)
		}
	}
	return r, nil
}

func (r *Registry) open(files []specFile) error {
	cache, err := cdi.NewCache(cdi.WithSpecDirs(r.dirs...), cdi.WithAutoRefresh(false))
	if err != nil {
		return fmt.Errorf("open the CDI spec directories %s: %w", strings.Join(r.dirs, ", "), err)
	}
	r.cache, r.checked = cache, r.now()
	r.take(files) // NewCache has read them
	return nil
}

// Run refreshes until the context ends.
func (r *Registry) Run(ctx context.Context) { periodic.Every(ctx, r.wait, nil, r.Refresh) }

// Refresh reads the specs again if a file has changed.
func (r *Registry) Refresh() { r.refresh(0) }

// Err returns why spec files are unusable.
func (r *Registry) Err() error { return errors.Join(r.current.Load().errs...) }

func (r *Registry) DeviceEdits(uuids []string) (*cdispec.ContainerEdits, error) {
	all, missing := r.current.Load().edits(uuids)
	if len(missing) > 0 {
		r.refresh(r.wait) // a spec can be new
		all, missing = r.current.Load().edits(uuids)
	}
	if len(missing) > 0 {
		return nil, r.unresolved(missing)
	}
	edits := Merge(all...)
	for _, d := range edits.DeviceNodes {
		if err := complete(d, r.stat); err != nil {
			return nil, fmt.Errorf("CDI devices %s: %w", r.qualified(uuids), err)
		}
	}
	return edits, nil
}

// Common returns the edits that all GPUs have: the driver's files.
func (r *Registry) Common() (*cdispec.ContainerEdits, error) {
	for range 2 {
		if specs := r.current.Load().Specs; len(specs) > 0 {
			return Merge(specs[0].Common), nil
		}
		r.refresh(r.wait) // a spec can be new
	}
	return nil, r.unresolved(nil)
}

// refresh does nothing if the last comparison is younger than age.
func (r *Registry) refresh(age time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.now().Sub(r.checked) < age {
		return
	}
	r.checked = r.now()
	files := listSpecs(r.dirs)
	if last := r.current.Load(); last != nil && slices.Equal(last.Files, files) {
		return
	}
	if r.cache == nil {
		if err := r.open(files); err != nil {
			r.log.Warn("CDI specs not read", "error", err)
		}
		return
	}
	_ = r.cache.Refresh() // take reads its errors
	r.take(files)
}

// take reads CDI's cache.
func (r *Registry) take(files []specFile) {
	next := &snapshot{Kind: r.kind, Dirs: r.dirs, Files: files}
	index := map[*cdi.Spec]int{}
	count := 0
	for _, qualified := range r.cache.ListDevices() {
		name, ok := strings.CutPrefix(qualified, r.kind+"=")
		d := r.cache.GetDevice(qualified)
		if !ok || d == nil {
			continue
		}
		i, known := index[d.GetSpec()]
		if !known {
			i = len(next.Specs)
			index[d.GetSpec()] = i
			next.Specs = append(next.Specs, specEdits{clone(&d.GetSpec().ContainerEdits), map[string]*cdispec.ContainerEdits{}})
		}
		next.Specs[i].Devices[name] = clone(&d.ContainerEdits)
		count++
	}
	errs := r.cache.GetErrors()
	for _, path := range slices.Sorted(maps.Keys(errs)) {
		next.errs = append(next.errs, fmt.Errorf("CDI spec %s: %w", path, errors.Join(errs[path]...)))
	}
	r.current.Store(next)

	r.log.Info("CDI specs read", "kind", r.kind, "devices", count)
	for _, err := range next.errs {
		r.log.Warn("CDI spec not usable", "error", err)
	}
}

func (s *snapshot) names() []string {
	names := []string{}
	for _, spec := range s.Specs {
		names = slices.AppendSeq(names, maps.Keys(spec.Devices))
	}
	slices.Sort(names)
	return names
}

func (s *snapshot) edits(uuids []string) (edits []*cdispec.ContainerEdits, missing []string) {
	for _, uuid := range uuids {
		i := slices.IndexFunc(s.Specs, func(spec specEdits) bool { return spec.Devices[uuid] != nil })
		if i < 0 {
			missing = append(missing, uuid)
			continue
		}
		edits = append(edits, s.Specs[i].Common, s.Specs[i].Devices[uuid])
	}
	return edits, missing
}

func (r *Registry) unresolved(missing []string) error {
	now := r.current.Load()
	err := fmt.Errorf("no CDI device %s in %s (of %s there: %s)",
		r.qualified(missing), strings.Join(r.dirs, ", "), r.kind, orNone(now.names()))
	if broken := errors.Join(now.errs...); broken != nil {
		err = fmt.Errorf("%w; %w", err, broken)
	}
	dir := r.dirs[len(r.dirs)-1]
	if r.kind != api.CDIKindDriver {
		_, class := parser.ParseQualifier(r.kind)
		return fmt.Errorf("%w: generate its spec: nvidia-ctk cdi generate --mode=%s --output=%s",
			err, class, filepath.Join(dir, "nvidia-"+class+".yaml"))
	}
	return fmt.Errorf("%w: generate the node's spec with GPUs named by UUID: "+
		"gpuslice cdi generate --driver, or nvidia-ctk cdi generate --device-name-strategy=uuid --output=%s",
		err, filepath.Join(dir, "nvidia.yaml"))
}

func (r *Registry) qualified(uuids []string) string {
	names := make([]string, len(uuids))
	for i, uuid := range uuids {
		names[i] = r.kind + "=" + uuid
	}
	return strings.Join(names, ", ")
}

type specFile struct {
	Path    string
	Size    int64
	Changed int64 // nanoseconds since 1970
}

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

// NewSavedRegistry is NewRegistry for short-lived programs. It saves the specs' content in a file that only the
// caller may write, because reading them takes milliseconds.
func NewSavedRegistry(cfg RegistryConfig, path string) (*Registry, error) {
	r, err := newRegistry(cfg)
	if err != nil {
		return nil, err
	}
	files := listSpecs(r.dirs) // first, so that later changes are seen
	if saved := readSnapshot(path); saved != nil && saved.Kind == r.kind && slices.Equal(saved.Dirs, r.dirs) && slices.Equal(saved.Files, files) {
		r.checked = r.now()
		r.current.Store(saved)
		return r, nil
	}
	if err := r.open(files); err != nil {
		return nil, err
	}
	if r.Err() == nil { // else each call reports the unusable specs
		if data, err := json.Marshal(r.current.Load()); err == nil {
			_ = atomicfile.Write(path, data, 0o600) // without it the next call only takes longer
		}
	}
	return r, nil
}

func readSnapshot(path string) *snapshot {
	data, err := rawfile.Read(path)
	if err != nil {
		return nil
	}
	var saved snapshot
	if json.Unmarshal(data, &saved) != nil {
		return nil
	}
	for _, spec := range saved.Specs {
		if spec.Common == nil {
			return nil
		}
	}
	return &saved
}
