package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpuslice/gpuslice/scheduler/webhook/certificate"
)

// run runs a server until the test ends, and is where it listens.
func run(t *testing.T, o Options) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	o.Listener, o.Log, o.Linger = listener, quiet, 0
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, o) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	return listener.Addr().String()
}

// healthy sends a request with this authority as root.
func healthy(at string, authority []byte) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "gpuslice-webhook.kube-system.svc"}}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Get("https://" + at + "/readyz")
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = errors.New(string(body))
	}
	return err
}

func TestRunWithItsOwnCertificate(t *testing.T) {
	o := DefaultOptions()
	client := fake.NewClientset()
	o.Client, o.Certificate.Mutating, o.Certificate.Validating = client, "", ""
	at := run(t, o)
	require.Eventually(t, func() bool {
		secret, err := client.CoreV1().Secrets("kube-system").Get(context.Background(), o.Certificate.Secret, metav1.GetOptions{})
		return err == nil && healthy(at, secret.Data["tls.crt"]) == nil
	}, time.Minute, 10*time.Millisecond)
}

func TestRunWithFiles(t *testing.T) {
	b, _, err := certificate.Bundle{}.Next(time.Now(), []string{"gpuslice-webhook.kube-system.svc"})
	require.NoError(t, err)
	o := DefaultOptions()
	dir := t.TempDir()
	o.CertFile, o.KeyFile = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	require.NoError(t, os.WriteFile(o.CertFile, b.Certs, 0o600))
	require.NoError(t, os.WriteFile(o.KeyFile, b.Keys, 0o600))
	at := run(t, o)
	require.NoError(t, healthy(at, b.Certs))
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(b.Certs)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "gpuslice-webhook.kube-system.svc"}}}
	defer client.CloseIdleConnections()
	body, err := os.ReadFile("testdata/binding.json")
	require.NoError(t, err)
	response, err := client.Post("https://"+at+"/validate", "application/json", bytes.NewReader(body))
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	response, err = client.Get("https://" + at + "/metrics")
	require.NoError(t, err)
	defer response.Body.Close()
	page, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Contains(t, string(page), `gpuslice_scheduler_admission_total{outcome="denied",path="/validate",reason="owned_annotation"} 1`)
}

// A server that shuts down still answers, and is not ready.
func TestRunLingers(t *testing.T) {
	b, _, err := certificate.Bundle{}.Next(time.Now(), []string{"gpuslice-webhook.kube-system.svc"})
	require.NoError(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	o := DefaultOptions()
	dir := t.TempDir()
	o.Listener, o.Log = listener, quiet
	lingered := make(chan time.Time)
	o.after = func(linger time.Duration) <-chan time.Time {
		require.Equal(t, DefaultOptions().Linger, linger)
		return lingered
	}
	o.CertFile, o.KeyFile = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	require.NoError(t, os.WriteFile(o.CertFile, b.Certs, 0o600))
	require.NoError(t, os.WriteFile(o.KeyFile, b.Keys, 0o600))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, o) }()
	require.NoError(t, healthy(listener.Addr().String(), b.Certs))
	cancel()
	require.ErrorContains(t, healthy(listener.Addr().String(), b.Certs), "the server is shutting down")
	close(lingered)
	require.NoError(t, <-ended)
	require.Error(t, healthy(listener.Addr().String(), b.Certs))
}

func TestRunErrors(t *testing.T) {
	for want, change := range map[string]func(*Options){
		"key file missing":           func(o *Options) { o.CertFile = "x" },
		"needs an API server client": func(o *Options) { o.Client = nil },
		"needs a namespace":          func(o *Options) { o.Certificate.Service = "" },
		"no user may write":          func(o *Options) { o.Writers = nil },
		"read the certificate":       func(o *Options) { o.CertFile, o.KeyFile = "/nowhere/crt", "/nowhere/key" },
		"listen on 127.0.0.1:100000": func(o *Options) { o.Address = "127.0.0.1:100000" },
	} {
		t.Run(want, func(t *testing.T) {
			o := DefaultOptions()
			o.Client, o.Log = fake.NewClientset(), quiet
			change(&o)
			require.ErrorContains(t, Run(context.Background(), o), want)
		})
	}
}

func TestFlags(t *testing.T) {
	o := DefaultOptions()
	fs := pflag.NewFlagSet("webhook", pflag.ContinueOnError)
	o.AddFlags(fs)
	require.NoError(t, fs.Parse(nil))
	require.Equal(t, DefaultRules(), o.Rules, "no flag changes nothing")
	require.NoError(t, fs.Parse([]string{"--scheduler-name=", "--our-scheduler=default-scheduler", "--our-scheduler=other", "--foreign-schedulers=leave",
		"--annotation-writer=a", "--annotation-writer=b", "--required-plugin=", "--tls-cert-file=c", "--tls-key-file=k"}))
	require.Equal(t, []string{"default-scheduler", "other"}, o.OurSchedulers)
	require.Equal(t, ForeignLeave, o.ForeignSchedulers)
	require.Equal(t, []string{"a", "b"}, o.Writers, "those that are named are all there are")
	require.NoError(t, o.Validate())
}
