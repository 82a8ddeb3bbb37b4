// Package podwatch follows the pods of one node at the API server: their metadata alone, and
// of that only the grant. It is for what changes while a pod runs, which the container
// runtime never tells; what a container gets when it is created comes without it.
//
// It costs one watch, selected by the node's name at the server, and a few hundred bytes a
// pod. It needs the right to list and watch pods; without it, pods of this node are created
// as ever and can't be resized.
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

	"github.com/gpuslice/gpuslice/grant"
)

// Sink is told of pods: *resized.Keeper.
type Sink interface {
	Set(pod grant.Pod)
	Gone(uid string)
	// Listed says which pods there are, by UID, once all were told of.
	Listed(uids map[string]bool)
}

// Watch follows the pods of a node.
type Watch struct {
	client metadata.Interface
	node   string
	sink   Sink
	log    *slog.Logger

	said sync.Map // errors that were logged
}

// New makes a watch; it calls the API server once Run does.
func New(config *rest.Config, node string, sink Sink, log *slog.Logger) (*Watch, error) {
	config = metadata.ConfigFor(config) // protobuf where the server has it
	config.WarningHandler = rest.NoWarnings{}
	config.QPS, config.Burst = 2, 5
	client, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("kubernetes client: %w", err)
	}
	return &Watch{client: client, node: node, sink: sink, log: log}, nil
}

var pods = schema.GroupVersionResource{Version: "v1", Resource: "pods"}

// Run follows until ctx ends. What fails is tried again.
func (w *Watch) Run(ctx context.Context) {
	informer := metadatainformer.NewFilteredMetadataInformer(w.client, pods, metav1.NamespaceAll, 0, cache.Indexers{},
		func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", w.node).String()
		}).Informer()
	_ = informer.SetTransform(slim)                        // fails only for an informer that was started
	_ = informer.SetWatchErrorHandlerWithContext(w.failed) // as above
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) { w.set(object) },
		UpdateFunc: func(old, object any) {
			if before, is := old.(metav1.Object); is && before.GetUID() != object.(metav1.Object).GetUID() {
				w.gone(old) // its deletion was missed
			}
			w.set(object)
		},
		DeleteFunc: w.gone,
	})
	if err != nil {
		w.log.Error("pods of this node can't be followed, nor resized", "error", err)
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
		w.log.Info("pods of this node are followed", "pods", len(uids))
	}
	<-running
}

// failed logs each error once in a while: client-go tries again every few seconds.
func (w *Watch) failed(_ context.Context, _ *cache.Reflector, err error) {
	now, text := time.Now(), err.Error()
	if last, said := w.said.Load(text); said && now.Sub(last.(time.Time)) < 10*time.Minute {
		return
	}
	w.said.Store(text, now)
	w.log.Warn("pods of this node can't be followed at present, nor resized: may the agent list and watch pods?", "error", err)
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

// slim keeps what is read of a pod.
func slim(object any) (any, error) {
	m, is := object.(*metav1.PartialObjectMetadata)
	if !is {
		return object, nil
	}
	kept := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		UID: m.UID, Namespace: m.Namespace, Name: m.Name, ResourceVersion: m.ResourceVersion,
	}}
	for _, key := range []string{grant.AnnotationGrant, grant.AnnotationSignature} {
		if value, there := m.Annotations[key]; there {
			if kept.Annotations == nil {
				kept.Annotations = map[string]string{}
			}
			kept.Annotations[key] = value
		}
	}
	return kept, nil
}
