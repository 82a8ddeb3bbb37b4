package plugin

import (
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/kube"
)

// resizer is what answers requests to resize pods that this process's profiles have placed.
func (f *Factory) resizer(s *shared, handle fwk.Handle) kube.ResizerConfig {
	return kube.ResizerConfig{
		Engine: s.engine, Client: handle.ClientSet(), Key: s.key, Log: s.log,
		Ready: func() error {
			if !s.feeding.Synced() {
				return errors.New("the cluster's nodes and pods are still being read")
			}
			if f.Leads != nil {
				return f.Leads()
			}
			return nil
		},
		Ours: func(name string) bool {
			_, is := f.profiles.Load(name)
			return is
		},
		Event: func(pod *v1.Pod, kind, reason, message string) {
			if recorder := handle.EventRecorder(); recorder != nil {
				recorder.Eventf(pod, nil, kind, reason, "Resize", "%s", message)
			}
		},
	}
}

// key signs grants; nil: they are not signed.
func (s *shared) key() (*grant.SigningKey, error) {
	if s.keys == nil {
		return nil, nil
	}
	if err := s.keys.Ready(); err != nil {
		return nil, fmt.Errorf("grants have to be signed: %w", err)
	}
	return s.keys.Current(), nil
}

// resizeSink tells the engine, and has pods tried again that wait when others have less than
// before: kube-scheduler makes no event of a change of annotations.
type resizeSink struct {
	*engine.Engine
	handle fwk.Handle
}

// mostWoken bounds how many pods are tried again at once; the oldest are.
const mostWoken = 1000

// SetPod implements kube.Sink.
func (s resizeSink) SetPod(p *scheduler.Pod) {
	before := s.Resized()
	s.Engine.SetPod(p)
	if s.Resized() == before {
		return
	}
	for _, w := range s.PendingUnreserved(mostWoken) {
		waiter{&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: w.Name, UID: types.UID(w.UID)}}, s.handle}.activate()
	}
}
