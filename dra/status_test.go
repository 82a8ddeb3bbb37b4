package dra_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	resourceapply "k8s.io/client-go/applyconfigurations/resource/v1"
	"k8s.io/client-go/kubernetes"
	resourceclient "k8s.io/client-go/kubernetes/typed/resource/v1"
	k8stesting "k8s.io/client-go/testing"

	"github.com/gpuslice/gpuslice/dra"
	"github.com/gpuslice/gpuslice/grant"
)

// statusOf makes a ResourceClaim, has it prepared, and returns what the API server has then.
func (f *fixture) statusOf(c *resourceapi.ResourceClaim) []resourceapi.AllocatedDeviceStatus {
	_, _ = f.prepare(c)
	now, err := f.client.ResourceV1().ResourceClaims(c.Namespace).Get(context.Background(), c.Name, metav1.GetOptions{})
	require.NoError(f.t, err)
	*c = *now
	return now.Status.Devices
}

func (f *fixture) writes() (n int) {
	for _, a := range f.client.Actions() {
		if a.GetVerb() == "patch" && a.GetSubresource() == "status" {
			n++
		}
	}
	return n
}

// The status of a ResourceClaim has the limits of its devices, or why they are refused; other drivers' are not touched.
func TestDeviceStatus(t *testing.T) {
	f := newFixture(t).impatient()
	other := result("network", gpuA, 1)
	other.Driver = "other.example"
	c := claim(result("gpu", gpuA, 1000), other)
	foreign := resourceapi.AllocatedDeviceStatus{Driver: other.Driver, Pool: other.Pool, Device: other.Device, ShareID: new("share-network")}
	c.Status.Devices = []resourceapi.AllocatedDeviceStatus{foreign}
	_, err := f.client.ResourceV1().ResourceClaims("ns").Create(t.Context(), c, metav1.CreateOptions{})
	require.NoError(t, err)
	own := func(all []resourceapi.AllocatedDeviceStatus) resourceapi.AllocatedDeviceStatus {
		t.Helper()
		require.Len(t, all, 2)
		require.Equal(t, foreign, all[0])
		require.Len(t, all[1].Conditions, 1)
		return all[1]
	}

	f.set(func() { f.noRoom = grant.Errorf(grant.ErrOverbooked, "no room") })
	s := own(f.statusOf(c))
	require.Equal(t, "node-1/h200", s.Pool)
	require.Equal(t, "share-gpu", *s.ShareID)
	require.Equal(t, metav1.ConditionFalse, s.Conditions[0].Status)
	require.Contains(t, s.Conditions[0].Message, "no room")
	refusedAt := s.Conditions[0].LastTransitionTime
	f.set(func() { f.noRoom = nil })
	s = own(f.statusOf(c))
	require.JSONEq(t, `{"uuid":"`+gpuA+`","memoryMiB":1000,"cores":30}`, string(s.Data.Raw))
	require.Equal(t, "Ready", s.Conditions[0].Type)
	require.Equal(t, metav1.ConditionTrue, s.Conditions[0].Status)
	require.Equal(t, "its containers have 1000 MiB and 30 % of the compute time of GPU "+gpuA, s.Conditions[0].Message)
	require.False(t, s.Conditions[0].LastTransitionTime.Before(&refusedAt))
	require.Equal(t, 2, f.writes())
	require.Equal(t, s, own(f.statusOf(c)))
	require.Equal(t, 2, f.writes(), "nothing has changed")

	f.client.PrependReactor("patch", "resourceclaims", func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("the API server is away")
	})
	c.Status.Devices = nil
	_, err = f.prepare(c)
	require.NoError(t, err, "a status is for people")
	require.Equal(t, 3, f.writes())
	malformed := claim()
	_, err = f.prepare(malformed)
	require.Error(t, err)
	require.Equal(t, 3, f.writes(), "it has no device of this driver")
}

// statusWriter is a client that notes the bounds of writes of statuses.
type statusWriter struct {
	kubernetes.Interface
	resourceclient.ResourceV1Interface
	resourceclient.ResourceClaimInterface
	write  func()
	bounds []time.Time
}

func (w *statusWriter) ResourceV1() resourceclient.ResourceV1Interface { return w }

func (w *statusWriter) ResourceClaims(string) resourceclient.ResourceClaimInterface { return w }

func (w *statusWriter) ApplyStatus(ctx context.Context, _ *resourceapply.ResourceClaimApplyConfiguration, _ metav1.ApplyOptions) (*resourceapi.ResourceClaim, error) {
	w.write()
	bound, _ := ctx.Deadline()
	w.bounds = append(w.bounds, bound)
	return nil, errors.New("the API server is away")
}

// The statuses of a request are written after all of its ResourceClaims are prepared, within one bound.
func TestStatusesOfARequest(t *testing.T) {
	f := newFixture(t)
	w := &statusWriter{Interface: f.client, write: func() { require.Len(t, f.files(), 4, "both are prepared") }}
	f.config.Client = w
	f.driver = dra.New(f.config)
	second := claim(result("gpu", gpuB, 1000))
	second.Name, second.UID = "d", "22222222-0000-4000-8000-00000000000b"
	results, err := f.driver.PrepareResourceClaims(t.Context(), []*resourceapi.ResourceClaim{claim(result("gpu", gpuA, 1000)), second})
	require.NoError(t, err)
	for _, r := range results {
		require.NoError(t, r.Err)
	}
	require.Len(t, w.bounds, 2)
	require.False(t, w.bounds[0].IsZero())
	require.Equal(t, w.bounds[0], w.bounds[1])
}

// The status has what limits the memory, if it is not the limiter.
func TestDeviceStatusHasTheMemoryEnforcement(t *testing.T) {
	f := newFixture(t).impatient()
	f.driver.MemoryEnforcement = "native"
	c := claim(result("gpu", gpuA, 1000))
	_, err := f.client.ResourceV1().ResourceClaims("ns").Create(t.Context(), c, metav1.CreateOptions{})
	require.NoError(t, err)
	s := f.statusOf(c)
	require.Len(t, s, 1)
	require.Equal(t, `{"cores":30,"memoryEnforcement":"native","memoryMiB":1000,"uuid":"`+gpuA+`"}`, string(s[0].Data.Raw), "in the order of the API server")
}
