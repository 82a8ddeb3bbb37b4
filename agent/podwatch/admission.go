package podwatch

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
)

const (
	admissionInterval = 200 * time.Millisecond
	// admissionQuiet is for pods that a scheduler binds before it has read that the node's GPUs are unhealthy.
	admissionQuiet = time.Second
	admissionMost  = 15 * time.Second
)

// Admission reports whether the kubelet has admitted the pods of a node.
type Admission struct {
	pods typed.PodInterface
	node string
}

// NewAdmission does not call the API server.
func NewAdmission(config *rest.Config, node string) (*Admission, error) {
	config = rest.CopyConfig(config)
	config.Timeout = admissionMost / 3
	config.QPS, config.Burst = 5, 5
	config.WarningHandler = rest.NoWarnings{}
	client, err := typed.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("kubernetes client: %w", err)
	}
	return &Admission{client.Pods(metav1.NamespaceAll), node}, nil
}

// Wait is WaitAll for 15 seconds at most.
func (a *Admission) Wait(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, admissionMost)
	defer cancel()
	a.WaitAll(ctx)
}

// WaitAll returns when no pod of the node has waited for its admission for a second, or when ctx ends. Without an
// answer of the API server the last one holds, and before the first one no pod waits.
func (a *Admission) WaitAll(ctx context.Context) {
	waited := false // by the last answer
	for last := time.Now(); time.Since(last) < admissionQuiet; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(admissionInterval):
		}
		if waits, err := a.anyWaits(ctx); waits || (err != nil && waited) {
			last, waited = time.Now(), true
		} else if err == nil {
			waited = false
		}
	}
}

// anyWaits finds pods without status.startTime, which the kubelet sets when it admits a pod.
func (a *Admission) anyWaits(ctx context.Context) (bool, error) {
	list, err := a.pods.List(ctx, metav1.ListOptions{FieldSelector: fields.Set{
		"spec.nodeName": a.node, "status.phase": string(corev1.PodPending),
	}.String()})
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(list.Items, func(p corev1.Pod) bool {
		return p.Status.StartTime == nil && p.DeletionTimestamp == nil
	}), nil
}
