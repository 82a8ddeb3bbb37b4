package nriplugin_test

import (
	"context"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/stretchr/testify/require"

	nriplugin "github.com/gpuslice/gpuslice/nri-plugin"
)

// synced is embedded by test plugins, to know when the runtime has synchronised them.
type synced struct{ done chan struct{} }

func newSynced() synced { return synced{make(chan struct{})} }

func (s synced) isSynced() <-chan struct{} { return s.done }

func (s synced) Synchronize(context.Context, []*api.PodSandbox, []*api.Container) ([]*api.ContainerUpdate, error) {
	close(s.done)
	return nil, nil
}

// startStub connects handlers under the plugin's own name, past its connection logic.
func startStub(t *testing.T, r *runtime, handlers interface{ isSynced() <-chan struct{} }) (stop func()) {
	return startStubAs(t, r, nriplugin.PluginIndex, nriplugin.PluginName, handlers)
}

func startStubAs(t *testing.T, r *runtime, index, name string, handlers interface{ isSynced() <-chan struct{} }) (stop func()) {
	s, err := stub.New(handlers, stub.WithPluginName(name), stub.WithPluginIdx(index),
		stub.WithSocketPath(r.socket), stub.WithOnClose(func() {}), stub.WithFailurePolicy(nriplugin.FailurePolicy()))
	require.NoError(t, err)
	require.NoError(t, s.Start(context.Background()))
	<-handlers.isSynced()
	// The runtime asks it from the moment that it lets creations go on.
	r.BlockPluginSync().Unblock()
	t.Cleanup(s.Stop)
	return s.Stop
}
