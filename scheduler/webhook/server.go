package webhook

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/internal/periodic"
	"github.com/gpuslice/gpuslice/scheduler/metrics"
	"github.com/gpuslice/gpuslice/scheduler/resourceclaims"
	"github.com/gpuslice/gpuslice/scheduler/webhook/certificate"
)

type Options struct {
	Rules
	// Listener, if set, replaces Address.
	Address  string
	Listener net.Listener
	// Certificate is used without CertFile.
	CertFile, KeyFile string
	Certificate       Certificate
	Client            kubernetes.Interface
	Log               *slog.Logger
	// Linger is how long Run continues after its context ended, until API servers use other
	// replicas.
	Linger time.Duration

	after func(time.Duration) <-chan time.Time // time.After; tests replace it
}

// Certificate configures the webhook's own certificate.
type Certificate struct {
	// Namespace has Secret and Service.
	Namespace, Secret, Service string
	// Names are further host names and IP addresses.
	Names []string
	// Mutating and Validating are updated with the caBundle; may be empty.
	Mutating, Validating string
}

// DefaultOptions match the manifests in install/admission.
func DefaultOptions() Options {
	return Options{
		Rules: DefaultRules(), Address: ":8443", Log: slog.Default(), Linger: 5 * time.Second,
		Certificate: Certificate{Namespace: "kube-system", Secret: "gpuslice-webhook-certificate", Service: "gpuslice-webhook",
			Mutating: "gpuslice", Validating: "gpuslice"},
	}
}

func (o *Options) Validate() error {
	errs := []error{o.Rules.Validate()}
	c := o.Certificate
	switch {
	case (o.CertFile == "") != (o.KeyFile == ""):
		errs = append(errs, errors.New("certificate file or key file missing: set both or none"))
	case o.CertFile == "" && (c.Namespace == "" || c.Secret == "" || c.Service == ""):
		errs = append(errs, errors.New("the webhook's own certificate needs a namespace, a Secret and the webhook's "+
			"Service: set them, or certificate and key files"))
	case o.Client == nil && len(o.ClaimNamespaces) > 0:
		errs = append(errs, errors.New("requests become ResourceClaims, which needs an API server client: set a kubeconfig"))
	case o.CertFile == "" && o.Client == nil:
		errs = append(errs, errors.New("the webhook's own certificate needs an API server client: set a kubeconfig, or "+
			"certificate and key files"))
	}
	return errors.Join(errs...)
}

const (
	// The API server waits at most 30 s for a webhook.
	readTimeout, writeTimeout, idleTimeout = 30 * time.Second, 30 * time.Second, 2 * time.Minute
	drain                                  = 20 * time.Second // for calls in progress at shutdown

	cleanInterval = time.Hour
)

type source interface {
	GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error)
	Ready() error
}

// Run serves until the context ends and Linger has passed.
func Run(ctx context.Context, o Options) error {
	if err := o.Validate(); err != nil {
		return err
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.after == nil {
		o.after = time.After
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var helpers sync.WaitGroup
	defer helpers.Wait()
	defer cancel()
	certificates, err := o.certificates(ctx, &helpers)
	if err != nil {
		return err
	}
	templates := o.templates(ctx, &helpers)
	listener := o.Listener
	if listener == nil {
		if listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", o.Address); err != nil {
			return fmt.Errorf("listen on %s: %w", o.Address, err)
		}
	}
	ready := func() error {
		if ctx.Err() != nil {
			return errors.New("the server is shutting down")
		}
		return certificates.Ready()
	}
	server := &http.Server{
		Handler:           o.handler(templates, ready),
		TLSConfig:         &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: certificates.GetCertificate},
		ReadHeaderTimeout: readTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: 64 << 10,
		ErrorLog:       slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug),
	}
	o.Log.Info("webhook is serving", "address", listener.Addr().String())
	ended, failed := make(chan error, 1), make(chan struct{})
	helpers.Go(func() {
		<-ctx.Done()
		select {
		case <-o.after(o.Linger):
		case <-failed:
		}
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
		defer cancel()
		ended <- server.Shutdown(late)
	})
	if err := server.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
		close(failed)
		return fmt.Errorf("serve on %s: %w", listener.Addr(), err)
	}
	if err := <-ended; err != nil {
		return fmt.Errorf("shut down the server on %s: %w", listener.Addr(), err)
	}
	return nil
}

func (o *Options) certificates(ctx context.Context, group *sync.WaitGroup) (source, error) {
	if o.CertFile != "" {
		return certificate.NewFiles(o.CertFile, o.KeyFile, time.Now, o.Log)
	}
	c := o.Certificate
	host := c.Service + "." + c.Namespace + ".svc"
	keeper := &certificate.Keeper{
		Store:    certificate.Secret{Client: o.Client.CoreV1(), Namespace: c.Namespace, Name: c.Secret},
		Announce: certificate.Configurations{Client: o.Client.AdmissionregistrationV1(), Mutating: c.Mutating, Validating: c.Validating}.Announce,
		Names:    append([]string{host, host + ".cluster.local"}, c.Names...),
		Now:      time.Now, Log: o.Log,
	}
	group.Go(func() { keeper.Run(ctx) })
	return keeper, nil
}

// templates is nil if no requests become ResourceClaims. It removes what is not used any more, until the context ends.
func (o *Options) templates(ctx context.Context, group *sync.WaitGroup) Templates {
	if len(o.ClaimNamespaces) == 0 {
		return nil
	}
	templates := &resourceclaims.Templates{Client: o.Client, Namespaces: o.ClaimNamespaces, Now: time.Now, Log: o.Log}
	group.Go(func() {
		periodic.Every(ctx, cleanInterval, nil, func() {
			if err := templates.Clean(ctx); err != nil && ctx.Err() == nil {
				o.Log.Warn("failed to remove ResourceClaimTemplates that no pod uses", "error", err)
			}
		})
	})
	return templates
}

func (o *Options) handler(templates Templates, ready func() error) http.Handler {
	counters := metrics.New()
	registry := prometheus.NewRegistry()
	registry.MustRegister(counters, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.Handle("/", Handler(o.Rules, templates, ready, counters, o.Log))
	return mux
}

// AddFlags adds flags with the current values as defaults.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Address, "address", o.Address, "listen on this host:port")
	fs.StringVar(&o.CertFile, "tls-cert-file", o.CertFile,
		"serve this certificate and reload it when it changes; empty: create one in --certificate-secret")
	fs.StringVar(&o.KeyFile, "tls-key-file", o.KeyFile, "private key of --tls-cert-file")
	fs.DurationVar(&o.Linger, "linger", o.Linger, "how long to continue serving, not ready, after SIGTERM, until the "+
		"API server uses another replica")
	c := &o.Certificate
	fs.StringVar(&c.Namespace, "namespace", c.Namespace, "namespace of the webhook's Service and Secret")
	fs.StringVar(&c.Secret, "certificate-secret", c.Secret, "Secret for the webhook's own certificate, shared by all replicas")
	fs.StringVar(&c.Service, "service", c.Service, "Service of the webhook")
	fs.StringSliceVar(&c.Names, "certificate-name", c.Names, "further host name or IP address of the webhook (repeatable)")
	fs.StringVar(&c.Mutating, "mutating-configuration", c.Mutating, "MutatingWebhookConfiguration to update with the caBundle; empty: none")
	fs.StringVar(&c.Validating, "validating-configuration", c.Validating,
		"ValidatingWebhookConfiguration to update with the caBundle; empty: none")

	fs.StringVar(&o.SchedulerName, "scheduler-name", o.SchedulerName,
		"scheduler for pods that request GPUs and name none; empty: default-scheduler")
	fs.StringSliceVar(&o.OurSchedulers, "our-scheduler", o.OurSchedulers, "another scheduler that assigns GPUs (repeatable)")
	fs.StringVar((*string)(&o.ForeignSchedulers), "foreign-schedulers", string(o.ForeignSchedulers), "pods that request GPUs "+
		"and name any other scheduler: `deny|leave` (leave: they run without GPUs)")
	fs.StringVar(&o.RuntimeClass, "runtime-class", o.RuntimeClass, "runtime class for pods that request GPUs and name none; empty: none")
	fs.StringVar(&o.RequiredPlugin, "required-plugin", o.RequiredPlugin,
		"NRI plugin without which containers with GPUs are refused; empty: none")
	fs.BoolVar(&o.TaskPriority, "task-priority", o.TaskPriority, "set CUDA_TASK_PRIORITY from "+o.Request.Names.Priority)
	fs.StringSliceVar(&o.PriorityNamespaces, "priority-namespace", o.PriorityNamespaces, "namespace in which agents accept "+
		o.Request.Names.Priority+": 0 (their --requested-priority-namespaces; * for all; repeatable); elsewhere such a pod gets a warning")
	fs.BoolVar(&o.AllowPrivileged, "allow-privileged", o.AllowPrivileged,
		"admit GPU requests of containers that are privileged, have CAP_SYS_ADMIN, or are in a pod with hostPID, although "+
			"they can open all GPUs of the node")
	fs.StringSliceVar(&o.PrivilegedNamespaces, "privileged-namespace", o.PrivilegedNamespaces,
		"namespace in which the GPU requests of --allow-privileged are admitted (repeatable)")
	fs.BoolVar(&o.AllowNodeName, "allow-node-name", o.AllowNodeName,
		"admit GPU requests of pods with spec.nodeName, although the scheduler assigns them no GPUs")
	fs.StringSliceVar(&o.ClaimNamespaces, "claim-namespace", o.ClaimNamespaces, "namespace in which requests for GPUs become ResourceClaims, "+
		"for any scheduler, on nodes with --resource-api=dra (* for all; repeatable)")
	fs.StringSliceVar(&o.Writers, "annotation-writer", o.Writers, "user that may write the scheduler's annotations (repeatable)")
	fs.StringSliceVar(&o.ToleratedNamespaces, "tolerated-namespace", o.ToleratedNamespaces,
		"namespace in which pods may have "+api.AnnotationTolerance+" (repeatable)")
	fs.StringSliceVar(&o.ToleratedUsers, "tolerated-user", o.ToleratedUsers, "user that may set "+api.AnnotationTolerance+" (repeatable)")
}
