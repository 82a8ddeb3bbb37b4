package certificate

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func TestSecret(t *testing.T) {
	ctx := context.Background()
	client := fake.NewClientset()
	secret := Secret{Client: client.CoreV1(), Namespace: "ns", Name: "cert"}
	b, version, err := secret.Load(ctx)
	require.NoError(t, err)
	require.Empty(t, version)
	require.Equal(t, Bundle{}, b)

	b = Bundle{Certs: []byte("a"), Keys: []byte("b")}
	require.NoError(t, secret.Save(ctx, b, ""))
	require.True(t, apierrors.IsConflict(secret.Save(ctx, b, "")), "made twice")
	loaded, _, err := secret.Load(ctx)
	require.NoError(t, err)
	require.Equal(t, b, loaded)
	require.True(t, apierrors.IsConflict(secret.Save(ctx, b, "of another version")))
}

func TestSecretKeepsMetadata(t *testing.T) {
	ctx := context.Background()
	made := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "cert", ResourceVersion: "7",
		Labels: map[string]string{"a": "b"}}, Type: corev1.SecretTypeOpaque}
	client := fake.NewClientset(made)
	secret := Secret{Client: client.CoreV1(), Namespace: "ns", Name: "cert"}
	_, version, err := secret.Load(ctx)
	require.NoError(t, err)
	require.NoError(t, secret.Save(ctx, Bundle{Certs: []byte("a")}, version))
	found, err := client.CoreV1().Secrets("ns").Get(ctx, "cert", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, made.Labels, found.Labels)
	require.Equal(t, made.Type, found.Type)
	require.Equal(t, []byte("a"), found.Data["tls.crt"])
}

func TestSecretErrors(t *testing.T) {
	ctx := context.Background()
	secrets := schema.GroupResource{Resource: "secrets"}
	for _, tc := range []struct {
		name, verb string
		err        error
		conflict   bool
		want       string
	}{
		{"the update comes late", "update", apierrors.NewConflict(secrets, "cert", nil), true, "ns/cert"},
		{"removed meanwhile", "update", apierrors.NewNotFound(secrets, "cert"), true, "ns/cert"},
		{"may not be made", "create", apierrors.NewForbidden(secrets, "cert", nil), false, "apply install/admission/webhook.yaml"},
		{"may not be read", "get", apierrors.NewForbidden(secrets, "cert", nil), false, "read secret ns/cert"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var objects []runtime.Object
			if tc.verb == "update" {
				objects = append(objects, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "cert", ResourceVersion: "1"}})
			}
			client := fake.NewClientset(objects...)
			client.PrependReactor(tc.verb, "secrets", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, tc.err })
			secret := Secret{Client: client.CoreV1(), Namespace: "ns", Name: "cert"}
			b, version, err := secret.Load(ctx)
			if err == nil {
				err = secret.Save(ctx, b, version)
			}
			require.ErrorContains(t, err, tc.want)
			require.Equal(t, tc.conflict, apierrors.IsConflict(err))
		})
	}
}

func TestAnnounce(t *testing.T) {
	ctx := context.Background()
	client := fake.NewClientset(
		&admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "m"},
			Webhooks: []admissionregistrationv1.MutatingWebhook{{Name: "one"}}},
		&admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "v"},
			Webhooks: []admissionregistrationv1.ValidatingWebhook{{Name: "one"}, {Name: "two",
				ClientConfig: admissionregistrationv1.WebhookClientConfig{CABundle: []byte("ca")}}}})
	c := Configurations{Client: client.AdmissionregistrationV1(), Mutating: "m", Validating: "v"}
	require.NoError(t, c.Announce(ctx, []byte("ca")))
	m, err := client.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(ctx, "m", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, []byte("ca"), m.Webhooks[0].ClientConfig.CABundle)
	v, err := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(ctx, "v", metav1.GetOptions{})
	require.NoError(t, err)
	for _, w := range v.Webhooks {
		require.Equal(t, []byte("ca"), w.ClientConfig.CABundle)
	}

	client.ClearActions()
	require.NoError(t, c.Announce(ctx, []byte("ca")))
	for _, action := range client.Actions() {
		require.Equal(t, "get", action.GetVerb(), "what is right is not written")
	}

	c.Mutating = "not there"
	err = c.Announce(ctx, []byte("other"))
	require.ErrorContains(t, err, "mutatingwebhookconfiguration not there")
	v, err = client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(ctx, "v", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, []byte("other"), v.Webhooks[0].ClientConfig.CABundle, "one that is missing doesn't keep the other from its bundle")
	require.NoError(t, Configurations{}.Announce(ctx, []byte("ca")), "no configurations")
}

func TestPatchGoesByName(t *testing.T) {
	var c configuration
	require.NoError(t, json.Unmarshal([]byte(`{"webhooks":[{"name":"one","clientConfig":{"caBundle":"Y2E="}},{"name":"two"}]}`), &c))
	patch, err := c.patch([]byte("ca"))
	require.NoError(t, err)
	require.JSONEq(t, `[{"op":"test","path":"/webhooks/1/name","value":"two"},
		{"op":"add","path":"/webhooks/1/clientConfig/caBundle","value":"Y2E="}]`, string(patch))
}
