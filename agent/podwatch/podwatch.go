// Package podwatch watches the pods of one node at the API server, for grants that change while a pod runs:
// the container runtime does not report these. Without permission to list and watch pods, pods can't be
// resized.
package podwatch

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
)

type Sink interface {
	Set(pod grant.Pod)
	Gone(uid string)
	Listed(uids map[string]bool)
}

// Watch follows the pods of a node.
type Watch struct {
	client metadata.Interface
	node   string
	sink   Sink
	log    *slog.Logger

	logged sync.Map
}

// New does not call the API server.
func New(config *rest.Config, node string, sink Sink, log *slog.Logger) (*Watch, error) {
	config = metadata.ConfigFor(config)
	config.WarningHandler = rest.NoWarnings{}
	config.QPS, config.Burst = 2, 5
	client, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("kubernetes client: %w", err)
	}
	return &Watch{client: client, node: node, sink: sink, log: log}, nil
}

var pods = schema.GroupVersionResource{Version: "v1", Resource: "pods"}

// Run follows the pods until ctx ends.
func (w *Watch) Run(ctx context.Context) {
	informer := metadatainformer.NewFilteredMetadataInformer(w.client, pods, metav1.NamespaceAll, 0, cache.Indexers{},
		func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", w.node).String()
		}).Informer()
	_ = informer.SetTransform(slim) // fails only for a started informer
	_ = informer.SetWatchErrorHandlerWithContext(w.failed)
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) { w.set(object) },
		UpdateFunc: func(old, object any) {
			if before, is := old.(metav1.Object); is && before.GetUID() != object.(metav1.Object).GetUID() {
				w.gone(old)
			}
			w.set(object)
		},
		DeleteFunc: w.gone,
	})
	if err != nil {
		w.log.Error("can't watch the pods of this node; they can't be resized", "error", err)
		return
	}
	running := make(chan struct{})
	go func() { defer close(running); informer.RunWithContext(ctx) }()
	if cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		uids := map[string]bool{}
		for _, object := range informer.GetStore().List() {
			if m, is := object.(*metav1.PartialObjectMetadata); is {
				uids[string(m.UID)] = true
			}
		}
		w.sink.Listed(uids)
		w.log.Info("watching the pods of this node", "pods", len(uids))
	}
	<-running
}

// failed limits logging: client-go retries every few seconds.
func (w *Watch) failed(_ context.Context, _ *cache.Reflector, err error) {
	now, text := time.Now(), err.Error()
	if last, known := w.logged.Load(text); known && now.Sub(last.(time.Time)) < 10*time.Minute {
		return
	}
	w.logged.Store(text, now)
	w.log.Warn("watching the pods of this node failed; they can't be resized now: check the agent's permissions to list and watch pods", "error", err)
}

func (w *Watch) set(object any) {
	if m, is := object.(*metav1.PartialObjectMetadata); is {
		w.sink.Set(grant.Pod{UID: string(m.UID), Namespace: m.Namespace, Name: m.Name, Annotations: m.Annotations})
	}
}

func (w *Watch) gone(object any) {
	if tombstone, is := object.(cache.DeletedFinalStateUnknown); is {
		object = tombstone.Obj
	}
	if m, is := object.(*metav1.PartialObjectMetadata); is {
		w.sink.Gone(string(m.UID))
	}
}

func slim(object any) (any, error) {
	m, is := object.(*metav1.PartialObjectMetadata)
	if !is {
		return object, nil
	}
	kept := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		UID: m.UID, Namespace: m.Namespace, Name: m.Name, ResourceVersion: m.ResourceVersion,
	}}
	for _, key := range []string{api.AnnotationGrant, api.AnnotationSignature} {
		if value, there := m.Annotations[key]; there {
			metav1.SetMetaDataAnnotation(&kept.ObjectMeta, key, value)
		}
	}
	return kept, nil
}
