package extender

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler/engine"
	"github.com/gpuslice/gpuslice/scheduler/kube"
)

// resizer configures the Resizer of this process.
func (c Config) resizer(ctx context.Context, e *engine.Engine, ready func() error) kube.ResizerConfig {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: c.Client.CoreV1().Events("")})
	recorder := broadcaster.NewRecorder(scheme.Scheme, v1.EventSource{Component: "gpuslice-extender"})
	return kube.ResizerConfig{
		Engine: e, Client: c.Client, Log: c.Log,
		Key: func() (*grant.SigningKey, error) {
			if c.Key == nil {
				return nil, nil
			}
			return c.Key(), nil
		},
		Ready: func() error {
			if err := ready(); err != nil {
				return err
			}
			return c.checkHost()
		},
		Event: func(pod *v1.Pod, kind, reason, message string) { recorder.Event(pod, kind, reason, message) },
	}
}

// checkHost returns an error if the leading kube-scheduler is on another host. The holder of its
// Lease starts with the host's name and "_".
func (c Config) checkHost() error {
	if c.LeaderLease == "" {
		return nil
	}
	namespace, name, _ := strings.Cut(c.LeaderLease, "/")
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	lease, err := c.Client.CoordinationV1().Leases(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("find the leading kube-scheduler: %w", err)
	}
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	if holder := lease.Spec.HolderIdentity; holder == nil || !strings.HasPrefix(*holder, host+"_") {
		return errNotLeading
	}
	return nil
}
