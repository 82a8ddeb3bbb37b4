package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"

	"github.com/gpuslice/gpuslice/agent/nodeconfig"
	"github.com/gpuslice/gpuslice/agent/noderegister"
	"github.com/gpuslice/gpuslice/agent/podwatch"
	"github.com/gpuslice/gpuslice/agent/resized"
	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/cmd/internal/doctor"
	"github.com/gpuslice/gpuslice/cmd/internal/version"
	"github.com/gpuslice/gpuslice/deviceplugin"
	"github.com/gpuslice/gpuslice/dra/prepared"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/grant/podresources"
	"github.com/gpuslice/gpuslice/internal/atomicfile"
	"github.com/gpuslice/gpuslice/internal/periodic"
	"github.com/gpuslice/gpuslice/internal/vgpufs"
	"github.com/gpuslice/gpuslice/ledger"
	"github.com/gpuslice/gpuslice/ledger/orphans"
	"github.com/gpuslice/gpuslice/limiter"
	"github.com/gpuslice/gpuslice/limiter/feedback"
	"github.com/gpuslice/gpuslice/monitor/audit"
	"github.com/gpuslice/gpuslice/monitor/audit/podevents"
	nriplugin "github.com/gpuslice/gpuslice/nri-plugin"
	"github.com/gpuslice/gpuslice/nvidia"
	"github.com/gpuslice/gpuslice/oci"
	"github.com/gpuslice/gpuslice/oci/native"
	"github.com/gpuslice/gpuslice/oci/request"
	ociruntime "github.com/gpuslice/gpuslice/oci/runtime"
)

// firstLook is short, because containers are not controlled before the agent is connected. NVML can
// take seconds or hang; until it responds, grants are refused and the kubelet retries.
const firstLook = time.Second

// noticeTime is for writing that the GPUs are unhealthy to the Node object.
const noticeTime = 3 * time.Second

// run runs the agent until ctx ends. Then it notifies schedulers first, and serves the kubelet until bound pods are
// admitted: a pod admitted without the device plugin fails permanently (UnexpectedAdmissionError).
func run(ctx context.Context, o options, log *slog.Logger) error {
	if o.Retire {
		return retire(ctx, o, log)
	}
	leaving := ctx
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	unlock, err := prepareStateDir(o.StateDir, log)
	if err != nil {
		return err
	}
	defer unlock()
	var holder limiter.Holder
	ledger, err := ledger.Open(o.StateDir, ledger.WithRecovery(oci.RecoverClaim), ledger.WithFloor(o.UnlimitedCoreFloor), ledger.WithHolder(&holder))
	if err != nil {
		return err
	}
	defer ledger.Close()
	machine, err := doctor.NewMachine("/")
	if err != nil {
		return err
	}
	defer machine.Close()
	registry, err := oci.NewRegistry(oci.RegistryConfig{Dirs: o.CDISpecDirs, Log: log})
	if err != nil {
		return err
	}
	inventory := nvidia.NewCache(nvml.New(nvml.WithLibraryPath(o.NVMLLibrary)), nvidia.CacheOptions{
		Interval: o.InventoryInterval, Events: true, IgnoreXIDs: o.IgnoreXIDs, Topology: true, Profiles: o.hasMIG(), Log: log,
	})

	// first runs from the start, then after the first reading of the GPUs.
	first := background{registry.Run}
	var then background
	published := newPublisher(&o, inventory, log)
	published.unplaced = ledger.Unplaced
	if published.mig, err = o.partitioner(ledger, inventory, &first, log); err != nil {
		return err
	}
	api, err := o.apiServer(log)
	if err != nil {
		return err
	}
	registered, err := o.registerNode(api, published, &first, log)
	if err != nil {
		return err
	}
	var events *podevents.Recorder
	var admission *podwatch.Admission
	if api != nil {
		if events, err = podevents.New(api, o.NodeName, log); err != nil {
			return err
		}
		if admission, err = podwatch.NewAdmission(api, o.NodeName); err != nil {
			return err
		}
		then = append(then, events.Run)
	}
	then = append(then, func(ctx context.Context) {
		defer stop()
		leave(ctx, leaving, registered, admission)
	})
	// Also without enforced compute shares: it finds memory that is not charged.
	loops := newWatchdog()
	shares := coreLoop(ledger, inventory, published.native, o.StateDir, o.UnlimitedCoreFloor, loops.loop("cores", feedback.LongestPause), log)
	var recorder audit.Events // an interface that is nil, not one of a nil pointer
	if events != nil {
		recorder = events
	}
	held := holdsOf(ledger, o.StateDir, o.UnlimitedCoreFloor, loops.loop("holds", feedback.LongestPause), recorder, log)
	shown, err := newMonitor(&o, ledger, inventory, published, shares.Use, held.Now, log)
	if err != nil {
		return err
	}
	reportBarrier(os.Getenv, shown.registry, log)
	mounts := vgpufs.NewRuntime()
	defer mounts.Close()
	plugin, err := o.nriPlugin(ledger, mounts, &holder, registry, published, shown.nri, &first, log)
	if err != nil {
		return err
	}
	plugin.Progress = loops.loop("nri", nriplugin.BackgroundInterval).tick
	published.keeper.Progress = loops.loop("resize", resized.IdlePause).tick
	published.progress = loops.loop("offers", offerInterval)
	var admitted func(context.Context)
	if registered != nil {
		admitted = func(ctx context.Context) {
			if periodic.Sleep(ctx, noticeTime) {
				admission.WaitAll(ctx)
			}
		}
	}
	connection := deviceplugin.NewConnection(plugin.Ready, admitted, log)
	published.connection = connection
	earlier := func(ctx context.Context) { holdEarlierOnce(ctx, ledger, o.UnlimitedCoreFloor, log) }
	if err := o.limitNatively(ledger, published, &then, log); err != nil {
		return err
	}
	then = append(then, earlier, connection.Run, published.run, shares.Run, held.Run, holdFiles(ledger, o.StateDir, &holder, loops.loop("files", holdInterval), log))
	if err := o.followPods(api, events, published.keeper, &then, log); err != nil {
		return err
	}
	if err := o.startAudit(ledger, inventory, published.native, plugin, &holder, shares.Excesses, shown, events, loops, &then, log); err != nil {
		return err
	}
	switch {
	case o.dra():
		if err := o.serveDRA(api, plugin, published, &then, log); err != nil {
			return err
		}
	case o.DevicePluginDir != "":
		policy := func() deviceplugin.Policy { return o.policy(published.now().Settings) }
		links := func(a, b string) int { return inventory.Snapshot().Topology.Link(a, b) }
		offers := newKubelet(&o, links, policy, connection, log)
		if o.hamiGrants() {
			offers.allocated = published.notify // the publisher releases the lock of HAMi's scheduler
		}
		published.offered = offers.set
		then = append(then, offers.run)
	}
	listener, err := listen("health-address", o.HealthAddress)
	if err != nil {
		return err
	}

	debug, err := listen("debug-address", o.DebugAddress)
	if err != nil {
		return err
	}

	// From here on, only the tasks return.
	tasks, ctx := errgroup.WithContext(ctx)
	if listener != nil {
		tasks.Go(func() error { return serveHealth(ctx, listener, healthServer(o.conditions(plugin, published, loops))) })
	}
	if debug != nil {
		tasks.Go(func() error { return serveProfiles(ctx, debug) })
	}
	shown.serve(ctx, tasks, plugin)
	tasks.Go(func() error { return inventory.Run(ctx) })
	first.start(ctx, tasks)
	tasks.Go(func() error {
		// Before the NRI socket: the first request can follow immediately. A node without a driver
		// is served too; its grants are refused.
		waitForGPUs(ctx, inventory, firstLook)
		published.native.look(ctx)
		published.update() // before /readyz is 200
		then.start(ctx, tasks)
		warnDriver(ctx, machine, o, log)
		log.Info("started", "version", version.String(), "node", o.NodeName, "gpus", len(inventory.Node().GPUs))
		return plugin.Run(ctx, o.NRISocket)
	})
	if err := tasks.Wait(); err != nil {
		return err
	}
	log.Info("stopped")
	return nil
}

type background []func(context.Context)

func (b background) start(ctx context.Context, tasks *errgroup.Group) {
	for _, run := range b {
		tasks.Go(func() error { run(ctx); return nil })
	}
}

// installLimiter installs the limiter for the containers of the NRI plugin. Without NRI, gpuslice-runtime installs it.
func (o *options) installLimiter(log *slog.Logger) (oci.Settings, error) {
	self, err := os.Executable()
	if err != nil {
		return oci.Settings{}, fmt.Errorf("find the path of this program: %w", err)
	}
	if !o.withNRI() {
		config := request.DefaultConfig()
		config.StateDir, config.LibraryDir, config.LimiterMode = o.StateDir, o.LibraryDir, o.LimiterMode
		l, err := ociruntime.FindLimiter(config, self)
		return o.settings(l.Library, l.Preload, l.Fronts), err
	}
	libraryPath, preloadPath, err := oci.InstallLibrary(o.Library, o.LibraryDir)
	if err != nil {
		return oci.Settings{}, err
	}
	var fronts oci.Stubs
	if o.LimiterMode != string(oci.LimiterPreload) {
		if fronts, err = oci.InstallStubs(o.Library, o.LibraryDir); err != nil {
			return oci.Settings{}, err
		}
	}
	log.Info("limiter installed", "library", libraryPath, "mode", o.LimiterMode)
	settings := o.settings(libraryPath, preloadPath, fronts)
	settings.MountCheck, err = oci.InstallMountCheck(filepath.Join(filepath.Dir(self), "gpuslice-runtime"), o.LibraryDir)
	settings.Native = native.Setup{Hook: settings.MountCheck, StateDir: o.StateDir}
	return settings, err
}

// sweepInterval is the time between two searches for claims of containers that are gone, without NRI.
const sweepInterval = 30 * time.Second

// sweep releases the claims of docker's and podman's containers that were killed with their engine.
func sweep(ctx context.Context, store *ledger.Ledger, log *slog.Logger) {
	releaser := orphans.Releaser{Ledger: store, Judge: orphans.NewJudge()}
	periodic.Every(ctx, sweepInterval, nil, func() {
		snapshot, err := store.Snapshot(ctx)
		if err == nil {
			_, err = releaser.Sweep(ctx, snapshot)
		}
		if err != nil && ctx.Err() == nil {
			log.Warn("failed to release the claims of containers that are gone; retrying", "error", err)
		}
	})
}

func (o *options) nriPlugin(store *ledger.Ledger, mounts *vgpufs.Runtime, holder *limiter.Holder, registry *oci.Registry, p *publisher, observer nriplugin.Observer, first *background, log *slog.Logger) (*nriplugin.Plugin, error) {
	settings, err := o.installLimiter(log)
	if err != nil {
		return nil, err
	}
	if o.PassDeviceSpecs {
		settings.Nodes = oci.NodeFiles{Paths: func(uuid string) ([]string, error) {
			return devicePaths(p.now().GPUs.Node, os.DirFS("/proc"), uuid)
		}}
	}
	devices, err := o.devices(registry, p, first, log)
	if err != nil {
		return nil, err
	}
	config := nriplugin.Config{
		NodeName:  o.NodeName,
		Ledger:    store,
		GPUs:      p.capacities,
		Missing:   func(uuid string) string { return p.now().missing(uuid) },
		Connected: mounts.Follow,
		Populate: func(dir string, claim ledger.Claim) error {
			err := mounts.MountTurns(o.StateDir)
			if err == nil {
				err = mounts.Mount(dir)
			}
			if err == nil {
				err = oci.Populate(dir, claim, p.ociSettings(settings))
			}
			if err == nil {
				err = holder.Hold(claim.ContainerID, dir) // before a process of the container can take a lease
			}
			return err
		},
		Settings: func() oci.Settings {
			s := p.ociSettings(settings)
			s.Channels = oci.HostIMEXChannels(o.imexChannels())
			return s
		},
		Devices:          devices,
		Unscheduled:      nriplugin.UnscheduledPolicy(o.UnscheduledPolicy),
		ExemptNamespaces: o.ExemptNamespaces,
		OptOutNamespaces: o.SwitchNamespaces,

		HighPriorityNamespaces: o.HighPriorityNamespaces, RequestedPriorityNamespaces: o.PriorityNamespaces,
		Observer:       observer,
		RefusedChanged: p.notify,
		Log:            log,
	}
	if o.dra() {
		if config.Prepared, err = prepared.Open(o.StateDir); err != nil {
			return nil, err
		}
	}
	if o.PodResourcesSocket != "" {
		config.Names = podresources.New(o.PodResourcesSocket, o.countedResources()...)
	}
	if o.GrantPublicKeyFile != "" {
		keys := grant.OpenPublicKeys(o.GrantPublicKeyFile, log)
		config.Keys = keys
		p.ready = append(p.ready, condition{"grant-keys", keys.Ready})
		*first = append(*first, keys.Run)
	}
	if p.keeper, err = o.keep(&config, p.native, log); err != nil {
		return nil, err
	}
	plugin, err := nriplugin.New(config)
	if err != nil {
		return nil, err
	}
	p.refused = plugin.Refused
	if !o.withNRI() {
		*first = append(*first, func(ctx context.Context) { sweep(ctx, store, log) })
		return plugin, nil
	}
	pruner := libraryPruner{
		dir: o.LibraryDir, stateDir: o.StateDir, cdiSpecDirs: o.CDISpecDirs, settings: settings,
		ledger: store, ready: plugin.Ready, interval: o.InventoryInterval, log: log,
	}
	*first = append(*first, pruner.run)
	return plugin, nil
}

// leave returns when ctx ends, or after leaving ended, schedulers are notified, and the kubelet has admitted the
// bound pods. registered can be nil.
func leave(ctx, leaving context.Context, registered *noderegister.Publisher, admission interface{ Wait(context.Context) }) {
	telling, cancel := context.WithCancel(leaving)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	if registered == nil {
		<-telling.Done()
		return
	}
	registered.Run(telling)
	admission.Wait(ctx)
}

// registerNode follows the node configuration. It returns the publisher to run, or nil without an
// API server.
func (o *options) registerNode(api *rest.Config, p *publisher, first *background, log *slog.Logger) (*noderegister.Publisher, error) {
	registered, err := o.register(api, p, log)
	if err != nil {
		return nil, err
	}
	var labels func() map[string]string
	if registered != nil {
		labels = registered.Labels
	}
	if o.NodeConfigFile != "" {
		*first = append(*first, o.followNodeConfig(p, labels, log).Run)
	}
	return registered, nil
}

func (o *options) followNodeConfig(p *publisher, labels func() map[string]string, log *slog.Logger) *nodeconfig.Watcher {
	var watcher *nodeconfig.Watcher
	watcher = nodeconfig.NewWatcher(nodeconfig.WatcherConfig{
		Path: o.NodeConfigFile, Labels: labels, Optional: o.NodeConfigFile == nodeconfig.DefaultPath,
		NodeName: o.NodeName, Check: o.checkSettings, Log: log,
		Changed: func() { o.warnUnused(watcher.Current, log); periodic.Wake(p.reconfigured) },
	})
	o.warnUnused(watcher.Current, log)
	p.settings = watcher.Current
	p.ready = append(p.ready, condition{"node-config", func() error { _, err := watcher.Current(); return err }})
	return watcher
}

func (o *options) warnUnused(current func() (nodeconfig.Settings, error), log *slog.Logger) {
	s, _ := current()
	if fields := unused(s); len(fields) > 0 {
		log.Warn("settings of the node configuration have no effect", "file", o.NodeConfigFile, "fields", fields)
	}
}

func listen(flag, address string) (net.Listener, error) {
	if address == "" {
		return nil, nil
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", flag, err)
	}
	return listener, nil
}

func waitForGPUs(ctx context.Context, inventory *nvidia.Cache, patience time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for errors.Is(gpusKnown(inventory), errNotRead) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
}

var errNotRead = errors.New("not read yet: waiting for NVML")

func gpusKnown(inventory *nvidia.Cache) error {
	s := inventory.Snapshot()
	if s.Err == nil && s.Taken.IsZero() {
		return errNotRead
	}
	return s.Err
}

func (o *options) conditions(plugin *nriplugin.Plugin, p *publisher, loops *watchdog) (live, ready []condition) {
	live = []condition{{"nri", plugin.Live}, {"loops", loops.failure}}
	ready = append([]condition{
		{"nri", plugin.Ready},
		{"gpus", func() error {
			return errors.Join(gpusKnown(p.inventory), o.stale(p.inventory.Snapshot(), time.Now()))
		}},
	}, p.ready...)
	return live, append(ready, live...)
}

// prepareStateDir takes a lock: two agents on a node would both answer for each container.
func prepareStateDir(dir string, log *slog.Logger) (unlock func(), err error) {
	// Others need access to mounted files, but may not list the directory.
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, fmt.Errorf("--state-dir: %w", err)
	}
	// A directory that the kubelet created for a volume can be listed by all.
	info, err := os.Stat(dir)
	if err == nil && info.Mode().Perm()&0o066 != 0 {
		err = os.Chmod(dir, info.Mode().Perm()&^0o066)
	}
	if err != nil {
		return nil, fmt.Errorf("--state-dir: %w", err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return nil, fmt.Errorf("--state-dir %s: %w", dir, err)
	}
	if fs.Type != unix.TMPFS_MAGIC && fs.Type != unix.RAMFS_MAGIC {
		log.Warn("the state directory is not on a tmpfs: creating containers waits for the disk, and a reboot leaves old state", "dir", dir)
	}
	lock, err := os.OpenFile(filepath.Join(dir, "agent.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("--state-dir: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("--state-dir %s: in use by another gpuslice-agent: stop it first", dir)
		}
		return nil, fmt.Errorf("--state-dir %s: %w", dir, err)
	}
	if err := atomicfile.RemoveUnfinished(dir, func(file string) bool { return file == api.NodeFileName || file == allowedFile }); err != nil {
		lock.Close()
		return nil, fmt.Errorf("--state-dir: %w", err)
	}
	return func() { lock.Close() }, nil
}
