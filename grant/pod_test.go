package grant_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
)

// listed answers with a fixed list, or an error.
type listed struct {
	containers []grant.ContainerDevices
	err        error
	asked      int
}

func (l *listed) ContainerNames(context.Context, grant.Pod) ([]grant.ContainerDevices, error) {
	l.asked++
	return l.containers, l.err
}

func ptr(n int) *int { return &n }

func TestFromPod(t *testing.T) {
	const (
		a = gpuA + ",NVIDIA,1000,10:"
		b = gpuB + ",NVIDIA,2000,20:"
		c = gpuC + ",NVIDIA,3000,30:"
	)
	shareA, shareB := grant.Share{gpuA, 1000, 10}, grant.Share{gpuB, 2000, 20}
	hami := func(position int, shares ...grant.Share) *grant.Grant {
		return &grant.Grant{Container: "main", Shares: shares, Source: grant.SourceHAMi, Position: ptr(position)}
	}
	names := func(list ...any) (out []grant.ContainerDevices) {
		for i := 0; i < len(list); i += 2 {
			out = append(out, grant.ContainerDevices{Name: list[i].(string), Devices: list[i+1].(int)})
		}
		return out
	}
	toAllocate := func(value string) map[string]string { return map[string]string{api.AnnotationHAMiToAllocate: value} }
	tests := []struct {
		description string
		annotations map[string]string
		listed      []grant.ContainerDevices
		want        *grant.Grant
		kind        error
		asked       bool
	}{
		{description: "no annotation"},
		{description: "another's annotation", annotations: map[string]string{"hami.io/vgpu-time": "1"}},
		{description: "nothing to allocate", annotations: toAllocate("")},
		{description: "only empty entries: no request", annotations: toAllocate(";;;")},
		{description: "one entry is plain", annotations: toAllocate(a + b + ";"), want: hami(0, shareA, shareB)},
		{description: "our own", annotations: map[string]string{api.AnnotationGrant: `{"version":1,"node":"node-1","containers":{"main":[{"uuid":"` + gpuA + `","memoryMiB":1000,"cores":10}]}}`},
			want: &grant.Grant{Container: "main", Shares: []grant.Share{shareA}, Source: grant.SourceNamed}},
		{description: "our own wins over HAMi's", annotations: map[string]string{
			api.AnnotationGrant:          `{"version":1,"containers":{"main":[{"cores":20,"memoryMiB":2000,"uuid":"` + gpuB + `"}]}}`,
			api.AnnotationHAMiToAllocate: a + ";"},
			want: &grant.Grant{Container: "main", Shares: []grant.Share{shareB}, Source: grant.SourceNamed}},
		{description: "our own without the container: HAMi's is not read", annotations: map[string]string{
			api.AnnotationGrant:          `{"version":1,"containers":{"side":[{"uuid":"` + gpuA + `","memoryMiB":1,"cores":1}]}}`,
			api.AnnotationHAMiToAllocate: a + ";"}},
		{description: "erased: the copy that is never erased is read", annotations: map[string]string{
			api.AnnotationHAMiToAllocate: ";", api.AnnotationHAMiAllocated: a + ";"}, want: hami(0, shareA)},
		{description: "erased to nothing", annotations: map[string]string{
			api.AnnotationHAMiToAllocate: "", api.AnnotationHAMiAllocated: a + ";"}, want: hami(0, shareA)},
		{description: "only the copy", annotations: map[string]string{api.AnnotationHAMiAllocated: a + ";"}, want: hami(0, shareA)},
		{description: "partly erased", annotations: map[string]string{
			api.AnnotationHAMiToAllocate: ";" + b + ";", api.AnnotationHAMiAllocated: a + ";" + b + ";"},
			listed: names("main", 1, "side", 1), want: hami(0, shareA), asked: true},
		{description: "on the node that was chosen", annotations: map[string]string{
			api.AnnotationHAMiToAllocate: a + ";", api.AnnotationHAMiNode: "node-1"}, want: hami(0, shareA)},

		{description: "two containers, in order", annotations: toAllocate(a + ";" + b + ";"), listed: names("side", 1, "main", 1), want: hami(1, shareB), asked: true},
		{description: "sidecar without a GPU before it", annotations: toAllocate(";" + b + ";"), listed: names("side", 0, "main", 1), want: hami(1, shareB), asked: true},
		{description: "container without devices", annotations: toAllocate(a + ";;"), listed: names("side", 1, "main", 0), asked: true},
		{description: "container without devices, whichever empty entry", annotations: toAllocate(";;" + a + ";"), listed: names("main", 0, "side", 1), asked: true},
		{description: "counts distinguish positions", annotations: toAllocate(a + ";" + a + b + ";" + c + ";"), listed: names("main", 2, "last", 1), want: hami(1, shareA, shareB), asked: true},
		{description: "init container with a GPU, app last", annotations: toAllocate(a + ";" + b + ";"), listed: names("main", 1), want: hami(1, shareB), asked: true},
		{description: "init container without a GPU, app last", annotations: toAllocate(";" + b + ";"), listed: names("main", 1), want: hami(1, shareB), asked: true},
		{description: "init container asks, all GPUs are others'", annotations: toAllocate(";" + b + ";"), listed: names("app", 1), asked: true},
		{description: "ephemeral container asks, all GPUs are others'", annotations: toAllocate(a + ";" + b + ";"), listed: names("app", 1, "side", 1), asked: true},

		{description: "unlisted with a GPU left: could be an ephemeral one", annotations: toAllocate(a + ";" + b + ";"), listed: names("app", 1), kind: grant.ErrAmbiguous, asked: true},
		{description: "sidecar or init container", annotations: toAllocate(a + ";" + b + ";" + c + ";"), listed: names("main", 1, "app", 1), kind: grant.ErrAmbiguous, asked: true},
		{description: "more containers than positions", annotations: toAllocate(a + ";" + b + ";"), listed: names("main", 1, "side", 1, "third", 0), kind: grant.ErrAmbiguous, asked: true},
		{description: "counts do not fit", annotations: toAllocate(a + b + ";" + c + ";"), listed: names("main", 1, "side", 1), kind: grant.ErrAmbiguous, asked: true},
		{description: "counts fit in another order only", annotations: toAllocate(a + ";" + b + c + ";"), listed: names("main", 2, "side", 1), kind: grant.ErrAmbiguous, asked: true},
		{description: "nothing listed", annotations: toAllocate(a + ";" + b + ";"), kind: grant.ErrAmbiguous, asked: true},
	}
	for _, test := range tests {
		t.Run(test.description, func(t *testing.T) {
			names := &listed{containers: test.listed}
			pod := grant.Pod{UID: "u", Namespace: "ns", Name: "name", Annotations: test.annotations}
			got, err := grant.FromPod(context.Background(), pod, "main", "node-1", names, nil)
			assert.Equal(t, test.asked, names.asked == 1)
			if test.kind != nil {
				require.ErrorIs(t, err, test.kind)
				assert.ErrorContains(t, err, `pod ns/name container "main": annotation `)
				assert.ErrorContains(t, err, api.AnnotationGrant, "the way out must be named")
				return
			}
			require.NoError(t, err)
			assert.Equal(t, test.want, got)
		})
	}
}

func TestFromPodWithoutAnswer(t *testing.T) {
	pod := grant.Pod{UID: "u", Namespace: "ns", Name: "name", Annotations: map[string]string{
		api.AnnotationHAMiToAllocate: ";" + gpuA + ",NVIDIA,1000,10:;"}}
	_, err := grant.FromPod(context.Background(), pod, "main", "node-1", nil, nil)
	require.ErrorIs(t, err, grant.ErrAmbiguous)

	broken := errors.New("kubelet is gone")
	_, err = grant.FromPod(context.Background(), pod, "main", "node-1", &listed{err: broken}, nil)
	require.ErrorIs(t, err, grant.ErrAmbiguous)
	require.ErrorIs(t, err, broken)
	assert.ErrorContains(t, err, "kubelet is gone")
}

func TestCoreCeiling(t *testing.T) {
	const ours, tencent = api.AnnotationCoreCeiling, api.AnnotationVcudaCoreCeiling
	for _, test := range []struct {
		description string
		annotations map[string]string
		want        int
		says        string
	}{
		{"none", nil, 0, ""},
		{"ours", map[string]string{ours: "80"}, 80, ""},
		{"gpu-manager's", map[string]string{tencent: "100"}, 100, ""},
		{"both", map[string]string{ours: "60", tencent: "70"}, 60, ""},
		{"a bad one beside a good one", map[string]string{ours: "", tencent: "70"}, 0, ours},
		{"nothing", map[string]string{ours: "0"}, 0, "1 to 100 percent"},
		{"too much", map[string]string{tencent: "101"}, 0, tencent},
		{"not a number", map[string]string{ours: "50%"}, 0, "plain digits"},
		{"a second spelling", map[string]string{ours: "050"}, 0, "plain digits"},
	} {
		t.Run(test.description, func(t *testing.T) {
			got, err := grant.CoreCeiling(grant.Pod{Namespace: "ns", Name: "p", Annotations: test.annotations}, "main")
			if test.says != "" {
				require.ErrorIs(t, err, grant.ErrMalformed)
				require.ErrorContains(t, err, test.says)
				require.ErrorContains(t, err, `pod ns/p container "main"`)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, test.want, got)
		})
	}
}
