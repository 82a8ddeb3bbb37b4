package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpuslice/gpuslice/test/harness"
)

// installChart loads the image, and installs the chart as its users do.
func (c *Cluster) installChart(ctx context.Context) error {
	root, err := harness.Repository()
	if err != nil {
		return err
	}
	if err := c.ImportImage(ctx, filepath.Join(root, "build/image/gpuslice.tar")); err != nil {
		return err
	}
	// The node is one of the control plane's too, where the extender is to be.
	_, err = c.API.CoreV1().Nodes().Patch(ctx, harness.NodeName, types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}`), metav1.PatchOptions{})
	if err != nil {
		return err
	}
	if err := c.InstallChart(ctx); err != nil {
		return err
	}
	return c.WaitWebhook(ctx)
}

// WaitWebhook waits until a pod with GPUs can be made: the API server reaches the webhook, and trusts its certificate.
func (c *Cluster) WaitWebhook(ctx context.Context) error {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "try"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "main", Image: harness.WorkloadImage,
			Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}},
		}}},
	}
	return harness.Until(ctx, patience, func(ctx context.Context) error {
		_, err := c.API.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	})
}

// admission is what the release has the API server ask and enforce.
type admission struct {
	mutating   admissionv1.MutatingWebhookConfigurationList
	validating admissionv1.ValidatingWebhookConfigurationList
	bindings   admissionv1.ValidatingAdmissionPolicyBindingList
}

var ofTheRelease = metav1.ListOptions{LabelSelector: "app.kubernetes.io/instance=" + Release}

// RemoveAdmission has the API server ask no webhook, and enforce no policy of ours, until InstallAdmission.
func (c *Cluster) RemoveAdmission(ctx context.Context) error {
	api := c.API.AdmissionregistrationV1()
	mutating, mErr := api.MutatingWebhookConfigurations().List(ctx, ofTheRelease)
	validating, vErr := api.ValidatingWebhookConfigurations().List(ctx, ofTheRelease)
	bindings, bErr := api.ValidatingAdmissionPolicyBindings().List(ctx, ofTheRelease)
	if err := errors.Join(mErr, vErr, bErr); err != nil {
		return err
	}
	if len(mutating.Items) == 0 || len(validating.Items) == 0 || len(bindings.Items) == 0 {
		return errors.New("the release has no webhooks, or no policy")
	}
	c.admission = &admission{*mutating, *validating, *bindings}
	return errors.Join(
		api.MutatingWebhookConfigurations().DeleteCollection(ctx, metav1.DeleteOptions{}, ofTheRelease),
		api.ValidatingWebhookConfigurations().DeleteCollection(ctx, metav1.DeleteOptions{}, ofTheRelease),
		api.ValidatingAdmissionPolicyBindings().DeleteCollection(ctx, metav1.DeleteOptions{}, ofTheRelease),
	)
}

// InstallAdmission takes RemoveAdmission back.
func (c *Cluster) InstallAdmission(ctx context.Context) error {
	if c.admission == nil {
		return errors.New("admission was not removed")
	}
	api := c.API.AdmissionregistrationV1()
	var errs []error
	made := func(err error) {
		if err != nil && !apierrors.IsAlreadyExists(err) {
			errs = append(errs, err)
		}
	}
	for i := range c.admission.mutating.Items {
		o := &c.admission.mutating.Items[i]
		o.ResourceVersion, o.UID = "", ""
		_, err := api.MutatingWebhookConfigurations().Create(ctx, o, metav1.CreateOptions{})
		made(err)
	}
	for i := range c.admission.validating.Items {
		o := &c.admission.validating.Items[i]
		o.ResourceVersion, o.UID = "", ""
		_, err := api.ValidatingWebhookConfigurations().Create(ctx, o, metav1.CreateOptions{})
		made(err)
	}
	for i := range c.admission.bindings.Items {
		o := &c.admission.bindings.Items[i]
		o.ResourceVersion, o.UID = "", ""
		_, err := api.ValidatingAdmissionPolicyBindings().Create(ctx, o, metav1.CreateOptions{})
		made(err)
	}
	return errors.Join(append(errs, c.WaitWebhook(ctx))...)
}

// StopWebhook ends the webhook's pods.
func (c *Cluster) StopWebhook(ctx context.Context) error { return c.scaleWebhook(ctx, 0) }

// StartWebhook takes StopWebhook back.
func (c *Cluster) StartWebhook(ctx context.Context) error {
	return errors.Join(c.scaleWebhook(ctx, 1), c.WaitWebhook(ctx))
}

func (c *Cluster) scaleWebhook(ctx context.Context, replicas int) error {
	_, err := c.API.AppsV1().Deployments(Namespace).Patch(ctx, WebhookName, types.MergePatchType,
		fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas), metav1.PatchOptions{})
	if err != nil {
		return err
	}
	err = harness.Until(ctx, patience, func(ctx context.Context) error {
		pods, err := podsOf(ctx, c.API, "webhook")
		if err == nil && len(pods) != replicas {
			err = fmt.Errorf("there are %d pods of the webhook", len(pods))
		}
		return err
	})
	return errors.Join(err, c.WaitRelease(ctx))
}

// GrantKeys returns the release's private and public keys for grants.
func (c *Cluster) GrantKeys(ctx context.Context) (private, public string, err error) {
	secret, err := c.API.CoreV1().Secrets(Namespace).Get(ctx, Release+"-grant-private-keys", metav1.GetOptions{})
	if err != nil {
		return "", "", err
	}
	configMap, err := c.API.CoreV1().ConfigMaps(Namespace).Get(ctx, Release+"-grant-public-keys", metav1.GetOptions{})
	if err != nil {
		return "", "", err
	}
	return string(secret.Data["private.pem"]), configMap.Data["public.pem"], nil
}

// shipped reads a file that is installed with gpuslice.
func shipped(elem ...string) ([]byte, error) {
	root, err := harness.Repository()
	if err != nil {
		return nil, err
	}
	return os.ReadFile(filepath.Join(append([]string{root, "install"}, elem...)...))
}
