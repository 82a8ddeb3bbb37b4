// Package resized is the node's half of resizing pods: it keeps the newest grant of each
// pod that was resized, gives its running containers what it says, and tells whoever
// creates a container of it. The runtime tells only the annotations that the pod's sandbox
// was made with, so that a container that restarts would get what it had at first.
//
// A grant counts if it is of a later generation than the one before it, for this node and,
// where there are keys, signed for this pod; the same with another signature counts for that.
// The newest are kept in files, so that an older one that is written on the pod again is none,
// also after the agent has restarted.
//
// It imports grant; who watches the API server (agent/podwatch) calls it, and the
// NRI plugin asks it. It calls neither.
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

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/ledger"
)

// dirName is the directory in the state directory: a file for each pod that was resized.
const dirName = "resized"

// Config is what a Keeper needs.
type Config struct {
	// StateDir is the ledger's directory.
	StateDir string
	NodeName string
	Ledger   *ledger.Ledger
	// Keys verify grants; nil: they need not be signed.
	Keys grant.Verifier
	// GPUs are what may be booked, by UUID.
	GPUs func() map[string]grant.GPU
	// Apply brings a container's limits to its claim (oci.ResizeOrPopulate).
	Apply func(dir string, claim ledger.Claim) error
	// Failed is told why a container has not what its pod's grant says; it may be nil.
	Failed func(claim ledger.Claim, message string)
	// Progress, if set, is called at each turn of Run.
	Progress func()
	Log      *slog.Logger
}

// Keeper keeps the newest grants. It is safe for concurrent use.
type Keeper struct {
	Config
	poke chan struct{}

	mu     sync.Mutex
	newest map[string]*kept // by pod UID
	said   map[string]string
}

// kept is a pod's newest grant, as it is written and as it is read.
type kept struct {
	Grant     string `json:"grant"`
	Signature string `json:"signature,omitempty"`

	pod *grant.PodGrant
}

// Open reads what was kept. A file that can't be read is logged and passed over: the pod's
// annotations say it again.
func Open(c Config) (*Keeper, error) {
	k := &Keeper{Config: c, poke: make(chan struct{}, 1), newest: map[string]*kept{}, said: map[string]string{}}
	if err := os.MkdirAll(k.dir(), 0o700); err != nil {
		return nil, fmt.Errorf("keep the newest grants: %w", err)
	}
	files, err := os.ReadDir(k.dir())
	if err != nil {
		return nil, fmt.Errorf("keep the newest grants: %w", err)
	}
	for _, file := range files {
		uid, is := strings.CutSuffix(file.Name(), ".json")
		if !is || ledger.ValidateContainerID(uid) != nil {
			continue
		}
		one, err := read(k.path(uid))
		if err == nil && one.pod.Node != "" && one.pod.Node != c.NodeName {
			err = fmt.Errorf("it is for node %q", one.pod.Node)
		}
		if err != nil {
			c.Log.Warn("a grant that was kept is not read", "pod", uid, "error", err)
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

// Set is the event that a pod of this node has come or has changed.
func (k *Keeper) Set(pod grant.Pod) {
	value, there := pod.Annotations[grant.AnnotationGrant]
	if !there || ledger.ValidateContainerID(pod.UID) != nil { // a UID becomes a file's name
		return
	}
	k.mu.Lock()
	before := k.newest[pod.UID]
	k.mu.Unlock()
	same := before != nil && before.Grant == value
	if same && before.Signature == pod.Annotations[grant.AnnotationSignature] {
		return
	}
	next, err := k.believe(pod, value)
	// The same grant may come with a signature by another key, after the keys have changed.
	if err == nil && next != nil && before != nil && !same && next.pod.Generation <= before.pod.Generation {
		err = fmt.Errorf("its generation is %d, and %d was applied: an older grant was written again", next.pod.Generation, before.pod.Generation)
	}
	if err == nil && next == nil && before != nil {
		err = errors.New("it is the one that the pod was bound with, and was resized since")
	}
	if err != nil {
		k.say(pod.UID, "the grant of a pod is not believed; what was granted before stays", "pod", pod.Namespace+"/"+pod.Name, "error", err)
		return
	}
	if next == nil {
		return
	}
	if err := k.write(pod.UID, next); err != nil {
		k.Log.Warn("the newest grant of a pod is not kept over a restart of the agent", "pod", pod.Namespace+"/"+pod.Name, "error", err)
	}
	k.mu.Lock()
	k.newest[pod.UID] = next
	delete(k.said, pod.UID)
	k.mu.Unlock()
	k.wake()
}

// believe is the grant, if it may be believed; nil if the pod was never resized.
func (k *Keeper) believe(pod grant.Pod, value string) (*kept, error) {
	decoded, err := grant.DecodeGrant(value)
	if err != nil {
		return nil, err
	}
	if decoded.Generation == 0 {
		return nil, nil
	}
	if decoded.Node != "" && decoded.Node != k.NodeName {
		return nil, fmt.Errorf("%w: it is for node %q", grant.ErrWrongNode, decoded.Node)
	}
	next := &kept{Grant: value, Signature: pod.Annotations[grant.AnnotationSignature], pod: decoded}
	if k.Keys != nil {
		if next.Signature == "" {
			return nil, fmt.Errorf("%w: it has no %s", grant.ErrSignature, grant.AnnotationSignature)
		}
		if err := k.Keys.Verify(pod.UID, k.NodeName, value, next.Signature); err != nil {
			return nil, err
		}
	}
	return next, nil
}

// write puts the grant into its file: complete or not at all.
func (k *Keeper) write(uid string, one *kept) error {
	data, err := json.Marshal(one)
	if err != nil {
		return err
	}
	next := filepath.Join(k.dir(), "."+uid)
	if err := os.WriteFile(next, data, 0o600); err != nil {
		return err
	}
	return os.Rename(next, k.path(uid))
}

// Gone is the event that a pod is gone.
func (k *Keeper) Gone(uid string) {
	k.mu.Lock()
	_, there := k.newest[uid]
	delete(k.newest, uid)
	delete(k.said, uid)
	k.mu.Unlock()
	if !there {
		return
	}
	if err := os.Remove(k.path(uid)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		k.Log.Warn("the grant of a pod that is gone stays in the state directory", "uid", uid, "error", err)
	}
}

// Listed says which pods the node has: others are gone.
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

// Newest is the pod with the annotations of its newest grant in place of its sandbox's, if
// that was resized since. It never blocks.
func (k *Keeper) Newest(pod grant.Pod) grant.Pod {
	k.mu.Lock()
	one := k.newest[pod.UID]
	k.mu.Unlock()
	if one == nil {
		return pod
	}
	value := pod.Annotations[grant.AnnotationGrant]
	if value != one.Grant {
		if now, err := grant.DecodeGrant(value); err != nil || now.Generation >= one.pod.Generation {
			return pod // what can't be read is refused by whoever reads it
		}
	} else if k.Keys == nil || k.Keys.Verify(pod.UID, k.NodeName, value, pod.Annotations[grant.AnnotationSignature]) == nil {
		return pod // else its signature may be by a key that is no more
	}
	pod.Annotations = maps.Clone(pod.Annotations)
	pod.Annotations[grant.AnnotationGrant] = one.Grant
	delete(pod.Annotations, grant.AnnotationSignature)
	if one.Signature != "" {
		pod.Annotations[grant.AnnotationSignature] = one.Signature
	}
	return pod
}

// Pauses between two looks: where something was not applied (another container may have
// to give back first), and where there is nothing to do.
const (
	retryPause = 2 * time.Second
	// IdlePause is the longest.
	IdlePause = 30 * time.Second
)

// Run applies what is kept until ctx ends: when it changes, and now and then, for a container
// that was about to be created may have been given what was granted before.
func (k *Keeper) Run(ctx context.Context) {
	for {
		if k.Progress != nil {
			k.Progress()
		}
		pause := IdlePause
		if !k.ApplyAll(ctx) {
			pause = retryPause
		}
		select {
		case <-ctx.Done():
			return
		case <-k.poke:
		case <-time.After(pause):
		}
	}
}

func (k *Keeper) wake() {
	select {
	case k.poke <- struct{}{}:
	default:
	}
}

// ApplyAll gives running containers what their pods' newest grants say, once. It says whether
// all have it.
func (k *Keeper) ApplyAll(ctx context.Context) bool {
	k.mu.Lock()
	newest := maps.Clone(k.newest)
	k.mu.Unlock()
	if len(newest) == 0 {
		return true
	}
	snapshot, err := k.Ledger.Snapshot(ctx)
	if err != nil {
		k.say("", "resized pods are not looked at", "error", err)
		return false
	}
	done := true
	for _, claim := range snapshot.Claims() {
		one := newest[claim.PodUID]
		if one == nil || claim.Owner != ledger.OwnerNRI || claim.Source != grant.SourceNamed {
			continue
		}
		want, granted := one.pod.Containers[claim.Container]
		if !granted || slices.Equal(want, claim.Shares) && !k.failedBefore(claim.ContainerID) {
			continue // of one that failed the limits may be behind the book
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
		k.forgive(claim.ContainerID)
		return true
	}
	if errors.Is(err, ledger.ErrNoClaim) { // it has ended meanwhile
		return true
	}
	if k.say(claim.ContainerID, "container not resized yet", "pod", name, "container", claim.Container, "error", err) && k.Failed != nil {
		k.Failed(claim, err.Error())
	}
	return false
}

// say logs a problem once, until it is another one, and says whether it did.
func (k *Keeper) say(about, message string, args ...any) bool {
	text := fmt.Sprint(append([]any{message}, args...)...)
	k.mu.Lock()
	same := k.said[about] == text
	k.said[about] = text
	k.mu.Unlock()
	if !same {
		k.Log.Warn(message, args...)
	}
	return !same
}

func (k *Keeper) failedBefore(id string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.said[id] != ""
}

func (k *Keeper) forgive(about string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.said, about)
}
