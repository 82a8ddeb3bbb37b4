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

	"k8s.io/client-go/kubernetes"

	"github.com/gpuslice/gpuslice/scheduler/webhook/certificate"
)

// Options are a webhook server's.
type Options struct {
	Rules
	// Address is what is listened on, host:port. Listener is used instead where it is set; Run closes it.
	Address  string
	Listener net.Listener
	// CertFile and KeyFile are what is served, where somebody else keeps it. Otherwise
	// Certificate is.
	CertFile, KeyFile string
	Certificate       Certificate
	// Client is for the Secret and the webhook configurations; not needed with files.
	Client kubernetes.Interface
	Log    *slog.Logger
	// Linger is how long the server goes on, not ready any more, when it is to end: the API server
	// learns late that it is asked elsewhere.
	Linger time.Duration

	// after is time.After; tests have their own.
	after func(time.Duration) <-chan time.Time
}

// Certificate says where the webhook keeps its own, and who trusts it.
type Certificate struct {
	// Namespace and Secret are where it is kept.
	Namespace, Secret string
	// Service is the webhook's, in the same namespace.
	Service string
	// Names are further host names and addresses by which the webhook is called, where its configurations
	// have a URL of it.
	Names []string
	// Mutating and Validating are the webhook configurations whose caBundle is kept; one
	// that is empty is left alone.
	Mutating, Validating string
}

// DefaultOptions are what install/admission's manifests go with.
func DefaultOptions() Options {
	return Options{
		Rules: DefaultRules(), Address: ":8443", Log: slog.Default(), Linger: 5 * time.Second,
		Certificate: Certificate{Namespace: "kube-system", Secret: "gpuslice-webhook-certificate", Service: "gpuslice-webhook",
			Mutating: "gpuslice", Validating: "gpuslice"},
	}
}

// Validate says what of the options makes no sense.
func (o *Options) Validate() error {
	errs := []error{o.Rules.Validate()}
	c := o.Certificate
	switch {
	case (o.CertFile == "") != (o.KeyFile == ""):
		errs = append(errs, errors.New("a certificate file goes with a key file: name both, or none"))
	case o.CertFile == "" && (c.Namespace == "" || c.Secret == "" || c.Service == ""):
		errs = append(errs, errors.New("a certificate of our own needs a namespace, a secret and the webhook's service: name them, or certificate and key files"))
	case o.CertFile == "" && o.Client == nil:
		errs = append(errs, errors.New("a certificate of our own needs a client of the API server: give a kubeconfig, or certificate and key files"))
	}
	return errors.Join(errs...)
}

const (
	// readLimit and writeLimit are above the API server's own limit of a webhook call (30 s at most).
	readLimit, writeLimit, idleLimit = 30 * time.Second, 30 * time.Second, 2 * time.Minute
	// drain is how long calls that are being answered may take when the server ends.
	drain = 20 * time.Second
)

// source is what has the certificate.
type source interface {
	GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error)
	Ready() error
}

// Run serves until the context ends, and Linger longer. Reviews that are being answered then are answered.
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
	listener := o.Listener
	if listener == nil {
		if listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", o.Address); err != nil {
			return fmt.Errorf("listen on %s: %w", o.Address, err)
		}
	}
	ready := func() error {
		if ctx.Err() != nil {
			return errors.New("the server is ending")
		}
		return certificates.Ready()
	}
	server := &http.Server{
		Handler:           o.pages(ready),
		TLSConfig:         &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: certificates.GetCertificate},
		ReadHeaderTimeout: readLimit, ReadTimeout: readLimit, WriteTimeout: writeLimit, IdleTimeout: idleLimit,
		MaxHeaderBytes: 64 << 10,
		ErrorLog:       slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug), // probes that hang up in the handshake
	}
	o.Log.Info("webhook", "address", listener.Addr().String())
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
		return fmt.Errorf("end the server on %s: %w", listener.Addr(), err)
	}
	return nil
}

// certificates is where the certificate comes from. What keeps it ends with the context, and is
// waited for by the group.
func (o *Options) certificates(ctx context.Context, group *sync.WaitGroup) (source, error) {
	if o.CertFile != "" {
		return certificate.NewFiles(o.CertFile, o.KeyFile, time.Now, o.Log)
	}
	c := o.Certificate
	host := c.Service + "." + c.Namespace + ".svc"
	keeper := &certificate.Keeper{
		Store:    certificate.Secret{Client: o.Client.CoreV1(), Namespace: c.Namespace, Name: c.Secret},
		Announce: certificate.Configurations{Client: o.Client.AdmissionregistrationV1(), Mutating: c.Mutating, Validating: c.Validating},
		Names:    append([]string{host, host + ".cluster.local"}, c.Names...),
		Now:      time.Now, Log: o.Log,
	}
	group.Go(func() { keeper.Run(ctx) })
	return keeper, nil
}
