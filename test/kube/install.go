package kube

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/test/harness"
)

// installScheduler gives the scheduler its rights and starts it.
func (c *Cluster) installScheduler(ctx context.Context) error {
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		return err
	}
	if err := os.WriteFile(c.GrantKeyFile(), []byte(hex.EncodeToString(key)), 0o400); err != nil {
		return err
	}
	name := "scheduler.yaml"
	if c.options.Door == Extender {
		name = "extender.yaml"
	}
	manifest, err := shipped("scheduler", name)
	if err != nil {
		return err
	}
	// Its rights. It runs as a process, and there is no image of it.
	if err := c.ApplyChanged(ctx, manifest, without("Deployment", "DaemonSet")); err != nil {
		return err
	}
	return c.StartScheduler(ctx)
}

// installAdmission starts the webhook, and has the API server ask it and enforce the policy.
func (c *Cluster) installAdmission(ctx context.Context) error {
	if err := c.StartWebhook(ctx); err != nil {
		return err
	}
	return c.InstallAdmission(ctx)
}

// RemoveAdmission has the API server ask no webhook, and enforce no policy of ours.
func (c *Cluster) RemoveAdmission(ctx context.Context) error {
	api := c.API.AdmissionregistrationV1()
	return errors.Join(
		api.MutatingWebhookConfigurations().Delete(ctx, "gpuslice", metav1.DeleteOptions{}),
		api.ValidatingWebhookConfigurations().Delete(ctx, "gpuslice", metav1.DeleteOptions{}),
		api.ValidatingAdmissionPolicyBindings().Delete(ctx, "gpuslice-annotations", metav1.DeleteOptions{}),
	)
}

// InstallAdmission has the API server ask the webhook, and enforce the policy.
func (c *Cluster) InstallAdmission(ctx context.Context) error {
	policy, err := shipped("admission", "policy.yaml")
	if err != nil {
		return err
	}
	if err := c.Apply(ctx, policy); err != nil {
		return err
	}
	configurations, err := shipped("admission", "configurations.yaml")
	if err != nil {
		return err
	}
	return c.ApplyChanged(ctx, configurations, c.pointAtWebhook)
}

// webhookAddress is where the webhook listens.
func (c *Cluster) webhookAddress() string { return c.ip + ":8443" }

// StartWebhook starts the webhook (again) and waits until it is ready.
func (c *Cluster) StartWebhook(ctx context.Context) error {
	path, err := harness.Artefact("bin", "gpuslice-scheduler")
	if err != nil {
		return err
	}
	args := []string{"webhook", "--address=" + c.webhookAddress(), "--scheduler-name=" + c.options.Door.SchedulerName(),
		"--tls-cert-file=" + c.identities.path("apiserver.crt"), "--tls-key-file=" + c.identities.path("apiserver.key")}
	if c.options.Door == Extender {
		args = append(args, "--our-scheduler=default-scheduler")
	}
	c.Webhook, err = c.startInside("gpuslice-webhook", append([]string{path}, args...)...)
	if err != nil {
		return err
	}
	return await(ctx, c.Webhook, 30*time.Second, func(ctx context.Context) error {
		return getInsecure(ctx, "https://"+c.webhookAddress()+"/readyz")
	})
}

// pointAtWebhook has a webhook configuration name the webhook by its address: there is no
// network of services here.
func (c *Cluster) pointAtWebhook(object map[string]any) (keep bool, err error) {
	webhooks, _ := object["webhooks"].([]any)
	if len(webhooks) == 0 {
		return false, fmt.Errorf("%v has no webhooks", object["kind"])
	}
	for _, w := range webhooks {
		webhook, _ := w.(map[string]any)
		client, _ := webhook["clientConfig"].(map[string]any)
		service, _ := client["service"].(map[string]any)
		path, _ := service["path"].(string)
		if path == "" {
			return false, fmt.Errorf("webhook %v names no service and path", webhook["name"])
		}
		address := url.URL{Scheme: "https", Host: c.webhookAddress(), Path: path}
		webhook["clientConfig"] = map[string]any{"url": address.String(), "caBundle": base64.StdEncoding.EncodeToString(c.identities.ca)}
	}
	return true, nil
}

// without leaves out objects of these kinds.
func without(kinds ...string) func(map[string]any) (bool, error) {
	return func(object map[string]any) (bool, error) {
		kind, _ := object["kind"].(string)
		return !slices.Contains(kinds, kind), nil
	}
}

// StopWebhook ends the webhook.
func (c *Cluster) StopWebhook() error { return stop(c.Webhook) }
