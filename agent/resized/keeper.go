// Package resized applies the newest grants of resized pods to their running containers, and returns them for
// later ones: the container runtime reports only the annotations of the sandbox. Files keep these grants, so
// that an older one is rejected after a restart, too.
package resized

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/atomicfile"
	"github.com/gpuslice/gpuslice/internal/periodic"
	"github.com/gpuslice/gpuslice/ledger"
)

const dirName = "resized"

type Config struct {
	StateDir string
	NodeName string
	Ledger   *ledger.Ledger
	Keys     grant.Verifier
	GPUs     func() map[string]grant.GPU
	// Apply sets a container's limits to its claim (oci.ResizeOrPopulate).
	Apply    func(dir string, claim ledger.Claim) error
	Failed   func(claim ledger.Claim, message string)
	Progress func()
	Log      *slog.Logger
}

// Keeper keeps the newest grants. It is safe for concurrent use.
type Keeper struct {
	Config
	poke chan struct{}

	mu     sync.Mutex
	newest map[string]*kept
	warned map[string]string
}

type kept struct {
	Grant     string `json:"grant"`
	Signature string `json:"signature,omitempty"`

	pod *grant.PodGrant
}

// Open skips unreadable files: the pod's annotations have the grant, too.
func Open(c Config) (*Keeper, error) {
	k := &Keeper{Config: c, poke: make(chan struct{}, 1), newest: map[string]*kept{}, warned: map[string]string{}}
	if err := os.MkdirAll(k.dir(), 0o700); err != nil {
		return nil, fmt.Errorf("read the stored grants: %w", err)
	}
	if err := atomicfile.RemoveUnfinished(k.dir(), func(string) bool { return true }); err != nil {
		return nil, fmt.Errorf("remove unfinished grants: %w", err)
	}
	files, err := os.ReadDir(k.dir())
	if err != nil {
		return nil, fmt.Errorf("read the stored grants: %w", err)
	}
	for _, file := range files {
		uid, is := strings.CutSuffix(file.Name(), ".json")
		if !is || ledger.ValidateContainerID(uid) != nil {
			continue
		}
		one, err := read(k.path(uid))
		if err == nil && one.pod.Node != "" && one.pod.Node != c.NodeName {
			err = fmt.Errorf("grant is for node %q", one.pod.Node)
		}
		if err != nil {
			c.Log.Warn("stored grant ignored", "pod", uid, "error", err)
			continue
		}
		k.newest[uid] = one
	}
	return k, nil
}

func (k *Keeper) dir() string            { return filepath.Join(k.StateDir, dirName) }
func (k *Keeper) path(uid string) string { return filepath.Join(k.dir(), uid+".json") }

func read(path string) (*kept, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var one kept
	if err := json.Unmarshal(data, &one); err != nil {
		return nil, err
	}
	one.pod, err = grant.DecodeGrant(one.Grant)
	return &one, err
}

// Set adds or updates a pod of this node.
func (k *Keeper) Set(pod grant.Pod) {
	value, there := pod.Annotations[api.AnnotationGrant]
	if !there || ledger.ValidateContainerID(pod.UID) != nil {
		return
	}
	k.mu.Lock()
	before := k.newest[pod.UID]
	k.mu.Unlock()
	same := before != nil && before.Grant == value
	if same && before.Signature == pod.Annotations[api.AnnotationSignature] {
		return
	}
	next, err := k.verify(pod, value)
	// The same grant can have a new signature after a change of the keys.
	if err == nil && next != nil && before != nil && !same && next.pod.Generation <= before.pod.Generation {
		err = fmt.Errorf("generation %d is not above the applied generation %d: an older grant was written again", next.pod.Generation, before.pod.Generation)
	}
	if err == nil && next == nil && before != nil {
		err = errors.New("it is the pod's original grant, and the pod was resized since")
	}
	if err != nil {
		k.warn(pod.UID, "grant rejected; the previous grant stays", "pod", pod.Namespace+"/"+pod.Name, "error", err)
		return
	}
	if next == nil {
		return
	}
	if err := k.write(pod.UID, next); err != nil {
		k.Log.Warn("storing the newest grant failed: it is lost when the agent restarts", "pod", pod.Namespace+"/"+pod.Name, "error", err)
	}
	k.mu.Lock()
	k.newest[pod.UID] = next
	delete(k.warned, pod.UID)
	k.mu.Unlock()
	periodic.Wake(k.poke)
}

func (k *Keeper) verify(pod grant.Pod, value string) (*kept, error) {
	decoded, err := grant.DecodeGrant(value)
	if err != nil {
		return nil, err
	}
	if decoded.Generation == 0 {
		return nil, nil
	}
	if decoded.Node != "" && decoded.Node != k.NodeName {
		return nil, fmt.Errorf("%w: grant is for node %q", grant.ErrWrongNode, decoded.Node)
	}
	if err := k.checkIsolation(pod, decoded); err != nil {
		return nil, err
	}
	next := &kept{Grant: value, Signature: pod.Annotations[api.AnnotationSignature], pod: decoded}
	if k.Keys != nil {
		if next.Signature == "" {
			return nil, fmt.Errorf("%w: annotation %s is missing", grant.ErrSignature, api.AnnotationSignature)
		}
		if err := k.Keys.Verify(pod.UID, k.NodeName, value, next.Signature); err != nil {
			return nil, err
		}
	}
	return next, nil
}

// checkIsolation: a resize changes nothing else of the isolation.
func (k *Keeper) checkIsolation(pod grant.Pod, next *grant.PodGrant) error {
	wanted, err := grant.RequestedIsolation(pod.Annotations)
	if err != nil || wanted != grant.IsolationHardware {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(next.Containers)) {
		if err := wanted.Check(next.Containers[name], k.GPUs(), grant.IsolationAny); err != nil {
			return fmt.Errorf("container %q: %w", name, err)
		}
	}
	return nil
}

func (k *Keeper) write(uid string, one *kept) error {
	data, err := json.Marshal(one)
	if err != nil {
		return err
	}
	return atomicfile.Write(k.path(uid), data, 0o600)
}

func (k *Keeper) Gone(uid string) {
	k.mu.Lock()
	_, there := k.newest[uid]
	delete(k.newest, uid)
	delete(k.warned, uid)
	k.mu.Unlock()
	if !there {
		return
	}
	if err := os.Remove(k.path(uid)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		k.Log.Warn("deleting the grant of a removed pod failed", "uid", uid, "error", err)
	}
}

// Listed removes the grants of other pods.
func (k *Keeper) Listed(uids map[string]bool) {
	k.mu.Lock()
	known := slices.Collect(maps.Keys(k.newest))
	k.mu.Unlock()
	for _, uid := range known {
		if !uids[uid] {
			k.Gone(uid)
		}
	}
}

// Newest returns the pod with the annotations of its newest grant, if it was resized.
func (k *Keeper) Newest(pod grant.Pod) grant.Pod {
	k.mu.Lock()
	one := k.newest[pod.UID]
	k.mu.Unlock()
	if one == nil {
		return pod
	}
	value := pod.Annotations[api.AnnotationGrant]
	if value != one.Grant {
		if now, err := grant.DecodeGrant(value); err != nil || now.Generation >= one.pod.Generation {
			return pod
		}
	} else if k.Keys == nil || k.Keys.Verify(pod.UID, k.NodeName, value, pod.Annotations[api.AnnotationSignature]) == nil {
		return pod // otherwise the signing key may be gone
	}
	pod.Annotations = maps.Clone(pod.Annotations)
	pod.Annotations[api.AnnotationGrant] = one.Grant
	delete(pod.Annotations, api.AnnotationSignature)
	if one.Signature != "" {
		pod.Annotations[api.AnnotationSignature] = one.Signature
	}
	return pod
}

// Pauses between two turns: after a failure (another container may have to release first), and
// otherwise.
const (
	retryPause = 2 * time.Second
	IdlePause  = 30 * time.Second
)

// Run applies the grants until ctx ends: after changes, and periodically, because a container
// created meanwhile may have an older grant.
func (k *Keeper) Run(ctx context.Context) {
	periodic.Vary(ctx, k.poke, func() time.Duration {
		if k.Progress != nil {
			k.Progress()
		}
		if k.ApplyAll(ctx) {
			return IdlePause
		}
		return retryPause
	})
}

// ApplyAll resizes the running containers; it returns false if one failed.
func (k *Keeper) ApplyAll(ctx context.Context) bool {
	k.mu.Lock()
	newest, warned := maps.Clone(k.newest), maps.Clone(k.warned)
	k.mu.Unlock()
	if len(newest) == 0 {
		return true
	}
	snapshot, err := k.Ledger.Snapshot(ctx)
	if err != nil {
		k.warn("", "reading the claims of resized pods failed", "error", err)
		return false
	}
	done := true
	for _, claim := range snapshot.Claims() {
		one := newest[claim.PodUID]
		if one == nil || claim.Owner != ledger.OwnerNRI || claim.Source != grant.SourceNamed {
			continue
		}
		want, granted := one.pod.Containers[claim.Container]
		if !granted || slices.Equal(want, claim.Shares) && warned[claim.ContainerID] == "" {
			continue // after a failure the limits can differ from the ledger
		}
		done = k.resize(ctx, claim, want) && done
	}
	return done
}

func (k *Keeper) resize(ctx context.Context, claim ledger.Claim, want []grant.Share) bool {
	_, err := k.Ledger.Resize(ctx, claim.ContainerID, want, k.GPUs(), k.Config.Apply)
	name := claim.PodNamespace + "/" + claim.PodName
	if err == nil {
		k.Log.Info("container resized", "pod", name, "container", claim.Container, "id", claim.ContainerID, "from", claim.Shares, "to", want)
		k.clearWarning(claim.ContainerID)
		return true
	}
	if errors.Is(err, ledger.ErrNoClaim) {
		return true
	}
	if k.warn(claim.ContainerID, "container not resized yet", "pod", name, "container", claim.Container, "error", err) && k.Failed != nil {
		k.Failed(claim, err.Error())
	}
	return false
}

func (k *Keeper) warn(about, message string, args ...any) bool {
	text := fmt.Sprint(append([]any{message}, args...)...)
	k.mu.Lock()
	same := k.warned[about] == text
	k.warned[about] = text
	k.mu.Unlock()
	if !same {
		k.Log.Warn(message, args...)
	}
	return !same
}

func (k *Keeper) clearWarning(about string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.warned, about)
}
