// Package dra is the node's DRA driver: it publishes the GPUs as ResourceSlices, and prepares ResourceClaims for the
// kubelet. Preparing gives no access: it writes a record, and a CDI device that mounts the record and nothing else. The
// NRI plugin gives the GPU to the container that has both.
package dra

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"
	drahealth "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/dra/devices"
	"github.com/gpuslice/gpuslice/dra/partition"
	"github.com/gpuslice/gpuslice/dra/prepared"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/internal/logonce"
	"github.com/gpuslice/gpuslice/internal/periodic"
)

// Config is the driver's input. All fields are required, except Patience.
type Config struct {
	NodeName string
	Client   kubernetes.Interface
	// KubeletDir is the kubelet's directory, with plugins and plugins_registry.
	KubeletDir string
	// CDIDir is for the CDI specs of prepared ResourceClaims.
	CDIDir   string
	Prepared *prepared.Store
	// Node returns what the node offers now, and false if it does not know that yet.
	Node func() (devices.Node, bool)
	// Ready returns why containers get no GPU now; nil: they get one.
	Ready func() error
	// Room returns why shares do not fit into the ledger now: ledger.Room.
	Room func(ctx context.Context, shares []grant.Share, resourceClaims []string) error
	// InUse returns whether a container has one of the requests of ResourceClaims: ledger.InUse.
	InUse func(ctx context.Context, resourceClaims []string) (bool, error)
	// MIG makes the MIG devices of places; nil: the node offers none.
	MIG *partition.Partitioner
	// MemoryEnforcement is what limits the memory of containers, for the status of ResourceClaims; "": the limiter.
	MemoryEnforcement string
	// Patience bounds the waits in a request; 0: 40 s, less than the kubelet's 45 s.
	Patience time.Duration
	Log      *slog.Logger
}

// Driver serves the kubelet. It is safe for concurrent use.
type Driver struct {
	Config
	drahealth.UnimplementedDRAResourceHealthServer

	changed chan struct{}
	// writing is held while records and CDI specs change.
	writing sync.Mutex
}

const patience = 40 * time.Second

// New returns a driver. It reads and writes nothing.
func New(c Config) *Driver {
	if c.Patience == 0 {
		c.Patience = patience
	}
	return &Driver{Config: c, changed: make(chan struct{}, 1)}
}

// Changed publishes what the node offers now.
func (d *Driver) Changed() { periodic.Wake(d.changed) }

// restartPause is the time between two attempts to serve the kubelet.
const restartPause = 2 * time.Second

// Run serves the kubelet until ctx ends. Without the kubelet's directory it waits for it.
func (d *Driver) Run(ctx context.Context) {
	ctx = klog.NewContext(ctx, logr.FromSlogHandler(d.Log.Handler()))
	if err := d.removeUnfinishedSpecs(); err != nil {
		d.Log.Warn("unfinished CDI specs stay", "directory", d.CDIDir, "error", err)
	}
	var publishing sync.WaitGroup
	defer publishing.Wait()
	publishing.Go(func() { d.publish(ctx) })
	if d.MIG != nil {
		publishing.Go(func() { d.MIG.Run(ctx, d.isPrepared) })
	}
	var problem logonce.Problem
	periodic.Vary(ctx, nil, func() time.Duration {
		err := d.serve(ctx)
		if ctx.Err() == nil {
			problem.Warn(d.Log, "the kubelet is not served by DRA; retrying", err)
		}
		return restartPause
	})
}

// serve returns when a server has failed, or ctx ends.
func (d *Driver) serve(ctx context.Context) error {
	if _, err := os.Stat(d.KubeletDir); err != nil {
		return err
	}
	data, registry := filepath.Join(d.KubeletDir, "plugins", api.DRADriver), filepath.Join(d.KubeletDir, "plugins_registry")
	for _, dir := range []string{data, registry} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return err
		}
	}
	s := newServer(d)
	helper, err := kubeletplugin.Start(ctx, s,
		kubeletplugin.DriverName(api.DRADriver), kubeletplugin.NodeName(d.NodeName), kubeletplugin.KubeClient(d.Client),
		kubeletplugin.PluginDataDirectoryPath(data), kubeletplugin.RegistrarDirectoryPath(registry),
		// A request that waits must not delay others.
		kubeletplugin.Serialize(false),
	)
	if err != nil {
		return err
	}
	defer helper.Stop()
	d.Log.Info("the kubelet is served by DRA", "driver", api.DRADriver, "directory", data)
	select {
	case <-ctx.Done():
		return nil
	case err := <-s.failed:
		return err
	}
}

// server is the driver for one call of kubeletplugin.Start: an error of earlier servers does not end it.
type server struct {
	*Driver
	failed chan error
}

func newServer(d *Driver) *server { return &server{Driver: d, failed: make(chan error, 1)} }

// HandleError is called by the servers' goroutines.
func (s *server) HandleError(_ context.Context, err error, message string) {
	if errors.Is(err, context.Canceled) || errors.Is(err, grpc.ErrServerStopped) {
		return
	}
	if errors.Is(err, kubeletplugin.ErrRecoverable) {
		s.Log.Warn("DRA: "+message, "error", err)
		return
	}
	select {
	case s.failed <- fmt.Errorf("%s: %w", message, err):
	default:
	}
}

// PrepareResourceClaims makes what containers need to get their GPUs. The kubelet repeats it, also for ResourceClaims
// that are prepared and in use: the answer is the same.
func (d *Driver) PrepareResourceClaims(ctx context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	request := ctx
	ctx, cancel := context.WithTimeout(ctx, d.Patience)
	defer cancel()
	results := map[types.UID]kubeletplugin.PrepareResult{}
	var reports []statusReport
	for _, claim := range claims {
		answer, shares, err := d.prepare(ctx, claim)
		if err != nil {
			d.Log.Warn("ResourceClaim refused", "claim", claim.Namespace+"/"+claim.Name, "uid", claim.UID, "reason", err)
			answer = nil
		}
		results[claim.UID] = kubeletplugin.PrepareResult{Err: err, Devices: answer}
		reports = append(reports, statusReport{claim, shares, err})
	}
	d.reportStatuses(request, reports)
	return results, nil
}

// prepare also returns what the devices are, as far as the allocation could be read.
func (d *Driver) prepare(ctx context.Context, claim *resourceapi.ResourceClaim) ([]kubeletplugin.Device, []devices.Result, error) {
	var a devices.Allocation
	var record prepared.Record
	err := d.wait(ctx, func() error {
		if err := d.Ready(); err != nil {
			return fmt.Errorf("containers get no GPU now: %w", err)
		}
		node, known := d.Node()
		if !known {
			return errors.New("the GPUs have not been read yet")
		}
		var err error
		if node, err = d.makeMIG(ctx, claim, node); err != nil {
			return err
		}
		if a, err = node.Allocation(claim); err != nil {
			return err
		}
		record = prepared.Record{UID: string(claim.UID), Namespace: claim.Namespace, Name: claim.Name, Requests: a.Requests}
		// The API server can regard a GPU as free that a container still has: after a forced deletion of its pod.
		return d.Room(ctx, a.Shares(), record.Devices())
	})
	if err == nil {
		err = d.write(ctx, record)
	}
	if err == nil {
		err = d.useMIG(record.UID)
	}
	if err != nil {
		return nil, a.Results, errors.Join(err, d.dropMIG(string(claim.UID)))
	}
	return answerOf(record, a.Results), a.Results, nil
}

// retryPause is the time between two looks at what a request waits for.
const retryPause = 500 * time.Millisecond

// wait calls check until it returns nil, or an error that does not pass.
func (d *Driver) wait(ctx context.Context, check func() error) error {
	for {
		err := check()
		if err == nil || errors.Is(err, grant.ErrMalformed) {
			return err
		}
		if !periodic.Sleep(ctx, retryPause) {
			return err
		}
	}
}

// write writes the record before the CDI spec: a container can't get the device without the record. A kill between both
// leaves a record that no container mounts.
func (d *Driver) write(ctx context.Context, record prepared.Record) error {
	d.writing.Lock()
	defer d.writing.Unlock()
	if err := ctx.Err(); err != nil { // the kubelet no longer waits, and can unprepare
		return context.Cause(ctx)
	}
	old, err := d.Prepared.Read(record.UID)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		d.Log.Warn("an unreadable prepared record is replaced", "error", err)
	case !old.Same(record):
		// It was allocated again, and the kubelet did not unprepare it.
		used, err := d.InUse(ctx, old.Devices())
		if err == nil && used {
			err = errors.New("it is prepared with other devices, and a container still has these: wait until that container has ended")
		}
		if err != nil {
			return fmt.Errorf("ResourceClaim %s/%s: %w", record.Namespace, record.Name, err)
		}
	}
	if err := d.Prepared.Write(record); err != nil {
		return err
	}
	return d.writeSpec(record)
}

func answerOf(record prepared.Record, results []devices.Result) (answer []kubeletplugin.Device) {
	named := map[string]bool{}
	for _, r := range results {
		device := kubeletplugin.Device{Requests: []string{r.Request}, PoolName: r.Pool, DeviceName: r.Device, ShareID: r.ShareID}
		if !named[r.Request] { // a request has one CDI device for all of its GPUs
			device.CDIDeviceIDs = []string{prepared.Device{UID: record.UID, Request: r.Request}.QualifiedName()}
			named[r.Request] = true
		}
		answer = append(answer, device)
	}
	return answer
}

// UnprepareResourceClaims removes what PrepareResourceClaims made. A container that still runs keeps its claim in the
// ledger.
func (d *Driver) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := map[types.UID]error{}
	for _, claim := range claims {
		err := d.remove(string(claim.UID))
		if err == nil && d.MIG != nil {
			err = d.MIG.Release(ctx, string(claim.UID))
		}
		if err != nil {
			d.Log.Warn("ResourceClaim not unprepared", "claim", claim.String(), "uid", claim.UID, "error", err)
		}
		results[claim.UID] = err
	}
	return results, nil
}

func (d *Driver) remove(uid string) error {
	d.writing.Lock()
	defer d.writing.Unlock()
	if err := d.removeSpec(uid); err != nil {
		return err
	}
	return d.Prepared.Remove(uid)
}
