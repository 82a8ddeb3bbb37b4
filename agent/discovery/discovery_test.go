package discovery

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpuslice/gpuslice/agent/noderegister"
	"github.com/gpuslice/gpuslice/api"
)

// machine has PCI devices, each as DRIVER CLASS ID; "-" is no driver.
func machine(devices ...string) fstest.MapFS {
	root := fstest.MapFS{pciDevices: {Mode: fs.ModeDir}}
	for i, device := range devices {
		is := strings.Fields(device)
		text := "PCI_CLASS=" + is[1] + "\nPCI_ID=" + is[2] + "\nPCI_SUBSYS_ID=10DE:1463\nPCI_SLOT_NAME=0000:0" + string(rune('0'+i)) + ":00.0\n"
		if is[0] != "-" {
			text = "DRIVER=" + is[0] + "\n" + text
		}
		root[pciDevices+"/0000:0"+string(rune('0'+i))+":00.0/uevent"] = &fstest.MapFile{Data: []byte(text)}
	}
	return root
}

const (
	bridge = "pcieport 60400 8086:7030"
	h200   = "nvidia 30200 10DE:2335"
)

func TestHasGPU(t *testing.T) {
	driver := machine(bridge)
	driver[driverVersion] = &fstest.MapFile{Data: []byte("NVRM version: NVIDIA UNIX x86_64 Kernel Module\n")}
	gone := machine(bridge)
	gone[pciDevices+"/0000:09:00.0"] = &fstest.MapFile{Mode: fs.ModeDir}
	for name, tc := range map[string]struct {
		root fs.FS
		want bool
	}{
		"a data centre's GPU":              {machine(bridge, h200), true},
		"a display":                        {machine("nouveau 30000 10DE:1EB8"), true},
		"no driver yet":                    {machine("- 30200 10DE:2335"), true},
		"digits of another case":           {machine("nvidia 30200 10de:2335"), true},
		"reserved for a virtual machine":   {machine("vfio-pci 30200 10DE:2335"), false},
		"one of two is reserved":           {machine("vfio-pci 30200 10DE:2335", h200), true},
		"another vendor's":                 {machine("amdgpu 30000 1002:73BF"), false},
		"NVIDIA's NVSwitch, USB and audio": {machine("nvidia-nvswitch 68000 10DE:22A3", "xhci_hcd C0330 10DE:1AD8", "snd_hda_intel 40300 10DE:10F9"), false},
		"no PCI devices":                   {machine(), false},
		"no PCI":                           {fstest.MapFS{"sys": {Mode: fs.ModeDir}}, false},
		"the driver, without PCI":          {driver, true},
		"a device that was removed":        {gone, false},
		"garbage":                          {machine("nvidia x 10DE:2335", "nvidia 3020000000 10DE:2335", "nvidia 30200 10DE2335"), false},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := HasGPU(tc.root)
			require.NoError(t, err)
			require.Equal(t, tc.want, got)
		})
	}
}

// unreadable is a machine of which the kernel refuses the files.
type unreadable struct{}

func (unreadable) Open(name string) (fs.File, error) {
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
}

func TestHasGPUOfWhatCanNotBeRead(t *testing.T) {
	_, err := HasGPU(unreadable{})
	require.ErrorIs(t, err, fs.ErrPermission, "not taken for a machine without a GPU")
}

var nodes = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}

func cluster(labels map[string]string) *metadatafake.FakeMetadataClient {
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		panic(err)
	}
	return metadatafake.NewSimpleMetadataClient(scheme, &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: "n1", ResourceVersion: "7", Labels: labels},
	})
}

func labelsOf(t *testing.T, client *metadatafake.FakeMetadataClient) map[string]string {
	t.Helper()
	node, err := client.Resource(nodes).Get(t.Context(), "n1", metav1.GetOptions{})
	require.NoError(t, err)
	return node.Labels
}

func config(client *metadatafake.FakeMetadataClient, root fs.FS) Config {
	return Config{Client: noderegister.ClientOf(client, FieldManager), Node: "n1", Root: root, Interval: time.Millisecond, Log: slog.New(slog.DiscardHandler)}
}

func TestLabel(t *testing.T) {
	const key = api.LabelHasGPU
	for name, tc := range map[string]struct {
		before  map[string]string
		root    fs.FS
		looks   int
		want    map[string]string
		patches int
	}{
		"a GPU":                       {nil, machine(h200), 1, map[string]string{key: "true"}, 1},
		"once":                        {nil, machine(h200), 3, map[string]string{key: "true"}, 1},
		"other labels stay":           {map[string]string{"a": "b"}, machine(h200), 1, map[string]string{"a": "b", key: "true"}, 1},
		"labelled before":             {map[string]string{key: "true"}, machine(h200), 1, map[string]string{key: "true"}, 0},
		"the operator wants no agent": {map[string]string{key: "false"}, machine(h200), 9, map[string]string{key: "false"}, 0},
		"no GPU":                      {map[string]string{"a": "b"}, machine(bridge), 9, map[string]string{"a": "b"}, 0},
		"a GPU that is reset":         {map[string]string{key: "true"}, machine(bridge), patience - 1, map[string]string{key: "true"}, 0},
		"a GPU that was removed":      {map[string]string{"a": "b", key: "true"}, machine(bridge), patience, map[string]string{"a": "b"}, 1},
		"another value, and no GPU":   {map[string]string{key: "later"}, machine(bridge), 9, map[string]string{key: "later"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			client := cluster(tc.before)
			l := labeller{Config: config(client, tc.root)}
			for range tc.looks {
				require.NoError(t, l.look(t.Context()))
			}
			require.Equal(t, tc.want, labelsOf(t, client))
			patches := 0
			for _, action := range client.Actions() {
				if patch, is := action.(clienttesting.PatchAction); is {
					patches++
					require.Contains(t, string(patch.GetPatch()), `"resourceVersion":"7"`)
					require.Equal(t, "n1", patch.GetName())
				} else {
					require.Equal(t, "get", action.GetVerb(), "the chart's rights are get and patch")
				}
			}
			require.Equal(t, tc.patches, patches)
		})
	}
}

// A GPU that comes back while it is waited for has not gone.
func TestAbsencesAreCountedInARow(t *testing.T) {
	client := cluster(map[string]string{api.LabelHasGPU: "true"})
	l := labeller{Config: config(client, nil)}
	for range 3 {
		for _, root := range []fs.FS{machine(bridge), machine(bridge), machine(h200)} {
			l.Root = root
			require.NoError(t, l.look(t.Context()))
		}
	}
	require.Equal(t, map[string]string{api.LabelHasGPU: "true"}, labelsOf(t, client))
}

var conflict = apierrors.NewConflict(nodes.GroupResource(), "n1", errors.New("the object has been modified"))

// interrupted has the Node changed by another between the read and the write.
type interrupted struct {
	Nodes
	change func()
}

func (i interrupted) Patch(context.Context, string, []byte) (*metav1.PartialObjectMetadata, error) {
	i.change()
	return nil, conflict
}

// An operator's label that is set between the read and the write stays.
func TestConflict(t *testing.T) {
	client := cluster(nil)
	c := config(client, machine(h200))
	c.Client = interrupted{c.Client, func() {
		_, err := client.Resource(nodes).(metadatafake.MetadataClient).UpdateFake(&metav1.PartialObjectMetadata{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
			ObjectMeta: metav1.ObjectMeta{Name: "n1", ResourceVersion: "8", Labels: map[string]string{api.LabelHasGPU: "false"}},
		}, metav1.UpdateOptions{})
		require.NoError(t, err)
	}}
	l := labeller{Config: c}
	require.NoError(t, l.look(t.Context()))
	require.Equal(t, map[string]string{api.LabelHasGPU: "false"}, labelsOf(t, client))
}

func TestFailures(t *testing.T) {
	refused := func(verb string, err error) *metadatafake.FakeMetadataClient {
		client := cluster(nil)
		client.PrependReactor(verb, "nodes", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, err })
		return client
	}
	forbidden := apierrors.NewForbidden(nodes.GroupResource(), "n1", errors.New("no rights"))
	for name, tc := range map[string]struct {
		client *metadatafake.FakeMetadataClient
		want   string
	}{
		"get":      {refused("get", forbidden), "no rights"},
		"patch":    {refused("patch", forbidden), "no rights"},
		"conflict": {refused("patch", conflict), "modified"},
	} {
		t.Run(name, func(t *testing.T) {
			err := Run(t.Context(), config(tc.client, machine(h200)))
			require.ErrorContains(t, err, "label gpuslice.io/has-gpu of node n1: ")
			require.ErrorContains(t, err, tc.want)
			require.LessOrEqual(t, len(tc.client.Actions()), 2*attempts)
		})
	}
	require.ErrorIs(t, Run(t.Context(), config(cluster(nil), unreadable{})), fs.ErrPermission)
}

// After the first attempt a failure is tried again, and what changes on the machine is followed.
func TestRun(t *testing.T) {
	client := cluster(nil)
	var failing atomic.Int32
	client.PrependReactor("get", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if failing.Add(-1) == 0 {
			return true, nil, errors.New("the API server is not available")
		}
		return false, nil, nil
	})
	failing.Store(2) // the second call
	root := &changing{}
	root.now.Store(ptr(machine(bridge)))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, config(client, root)) }()
	until := func(want string) {
		t.Helper()
		require.Eventually(t, func() bool {
			node, err := client.Resource(nodes).Get(t.Context(), "n1", metav1.GetOptions{})
			return err == nil && node.Labels[api.LabelHasGPU] == want
		}, time.Minute, time.Millisecond)
	}
	require.Eventually(t, func() bool { return failing.Load() < 0 }, time.Minute, time.Millisecond)
	root.now.Store(ptr(machine(bridge, h200)))
	until("true")
	root.now.Store(ptr(machine(bridge)))
	until("")
	cancel()
	require.NoError(t, <-ended)
}

func ptr(m fstest.MapFS) *fstest.MapFS { return &m }

// changing is a machine of which devices come and go.
type changing struct{ now atomic.Pointer[fstest.MapFS] }

func (c *changing) Open(name string) (fs.File, error) { return c.now.Load().Open(name) }
