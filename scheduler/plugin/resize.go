package plugin

import (
	"errors"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/kube"
)

func (f *Factory) resizer(s *shared, handle fwk.Handle) kube.ResizerConfig {
	return kube.ResizerConfig{
		Engine: s.engine, Client: handle.ClientSet(), Keys: s.keys, Log: s.log,
		Ready: func() error {
			if !s.feed.Synced() {
				return errors.New("reading the cluster's nodes and pods")
			}
			if f.CheckLeader != nil {
				return f.CheckLeader()
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

// resizeSink retries pending pods when a share became smaller: kube-scheduler has no event for it.
type resizeSink struct {
	*engine.Engine
	handle fwk.Handle
}

const maxRequeued = 1000 // the oldest

func (s resizeSink) SetPod(p *scheduler.Pod) {
	before := s.Resized()
	s.Engine.SetPod(p)
	if s.Resized() == before {
		return
	}
	for _, w := range s.PendingUnreserved(maxRequeued) {
		activate(s.handle, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: w.Name, UID: types.UID(w.UID)}})
	}
}
