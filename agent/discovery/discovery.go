// Package discovery labels its node as one with a GPU, so that the chart's default placement selects it. It needs no driver, and
// nothing of the host but what each container can read. Only cmd/gpuslice-agent imports it.
package discovery

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/api"
)

const (
	// present is the label's value that selects the node. Any other value is an operator's: the node gets no agent by this label.
	present = "true"
	// patience is how often in a row no GPU is found before the label is removed: while a GPU is reset it is not there.
	patience = 5
	// attempts is how often a write is tried again if the Node has changed meanwhile.
	attempts = 5
)

// FieldManager is another writer than the agent, which removes labels that it has written and no longer writes.
const FieldManager = "gpuslice-discovery"

// Nodes accesses the metadata of nodes.
type Nodes interface {
	Get(ctx context.Context, node string) (*metav1.PartialObjectMetadata, error)
	Patch(ctx context.Context, node string, patch []byte) (*metav1.PartialObjectMetadata, error)
}

type Config struct {
	Client   Nodes
	Node     string
	Root     fs.FS // the machine's "/"
	Interval time.Duration
	Log      *slog.Logger
}

// Run keeps the label up to date until ctx is done. A failure of the first attempt is an error: rights or the node's name are wrong.
func Run(ctx context.Context, c Config) error {
	l := labeller{Config: c}
	if err := l.look(ctx); err != nil {
		return err
	}
	ticker := time.NewTicker(c.Interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if err := l.look(ctx); err != nil && ctx.Err() == nil {
			c.Log.Warn("the node's label could not be updated; trying again", "error", err, "after", c.Interval)
		}
	}
}

type labeller struct {
	Config
	missed int // how often in a row no GPU was found
}

// look compares the label with the machine.
func (l *labeller) look(ctx context.Context) error {
	found, err := HasGPU(l.Root)
	if err != nil {
		return err
	}
	if l.missed++; found {
		l.missed = 0
	}
	for attempt := 1; ; attempt++ {
		err := l.write(ctx, found)
		if err == nil {
			return nil
		}
		if !apierrors.IsConflict(err) || attempt == attempts {
			return fmt.Errorf("label %s of node %s: %w", api.LabelHasGPU, l.Node, err)
		}
	}
}

func (l *labeller) write(ctx context.Context, found bool) error {
	node, err := l.Client.Get(ctx, l.Node)
	if err != nil {
		return err
	}
	value, labelled := node.Labels[api.LabelHasGPU]
	var next any // nil removes the label
	switch {
	case found && !labelled:
		next = present
	case !found && value == present && l.missed >= patience:
	default:
		return nil
	}
	// The version makes it a conflict if the label was set meanwhile.
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": node.ResourceVersion, "labels": map[string]any{api.LabelHasGPU: next},
	}})
	if err != nil {
		return err
	}
	if _, err := l.Client.Patch(ctx, l.Node, patch); err != nil {
		return err
	}
	l.Log.Info("labelled the node", "label", api.LabelHasGPU, "gpu", found)
	return nil
}
