package grantkeys

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpuslice/gpuslice/grant"
)

var objects = Objects{Namespace: "gpus", Secret: "private", ConfigMap: "public"}

func stored(t *testing.T, client *fake.Clientset) (private, public string) {
	t.Helper()
	secret, err := client.CoreV1().Secrets("gpus").Get(t.Context(), "private", metav1.GetOptions{})
	require.NoError(t, err)
	configMap, err := client.CoreV1().ConfigMaps("gpus").Get(t.Context(), "public", metav1.GetOptions{})
	require.NoError(t, err)
	return string(secret.Data[PrivateFile]), configMap.Data[PublicFile]
}

func ensure(t *testing.T, client *fake.Clientset) (private, public string) {
	t.Helper()
	require.NoError(t, Ensure(t.Context(), client, objects, slog.New(slog.DiscardHandler)))
	private, public = stored(t, client)
	key, _, err := grant.ParseSigningKeys([]byte(private))
	require.NoError(t, err)
	ring, err := grant.ParsePublicKeys([]byte(public))
	require.NoError(t, err)
	signature, err := key.Sign("u-1", "node-1", "{}")
	require.NoError(t, err)
	require.NoError(t, ring.Verify("u-1", "node-1", "{}", signature), "agents verify what the scheduler signs")
	return private, public
}

func newKey(t *testing.T) (private, public string) {
	t.Helper()
	key, err := grant.NewPrivateKey()
	require.NoError(t, err)
	_, ring, err := grant.ParseSigningKeys(key)
	require.NoError(t, err)
	return string(key), string(ring.PEM())
}

func secret(text string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "gpus", Name: "private"}, Data: map[string][]byte{PrivateFile: []byte(text)}}
}

func configMap(text string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "gpus", Name: "public"}, Data: map[string]string{PublicFile: text, "notes": "kept"}}
}

func TestKeysAreCreatedOnce(t *testing.T) {
	client := fake.NewClientset()
	private, public := ensure(t, client)
	again, publicAgain := ensure(t, client)
	require.Equal(t, private, again)
	require.Equal(t, public, publicAgain)
	other, _ := ensure(t, fake.NewClientset())
	require.NotEqual(t, private, other)
}

// Keys of an operator, and of releases of which the chart rendered them, stay: grants of running pods were signed with them.
func TestExistingKeysStay(t *testing.T) {
	first, firstPublic := newKey(t)
	second, secondPublic := newKey(t)
	for name, tc := range map[string]struct{ private, public string }{
		"one key":                        {first, firstPublic},
		"with a comment":                 {first, "# ours\n" + firstPublic},
		"rotation: nodes know the next":  {first, firstPublic + secondPublic},
		"rotation: the second key signs": {second + first, firstPublic + secondPublic},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(secret(tc.private), configMap(tc.public))
			private, public := ensure(t, client)
			require.Equal(t, tc.private, private)
			require.Equal(t, tc.public, public)
			for _, action := range client.Actions() {
				require.Equal(t, "get", action.GetVerb())
			}
		})
	}
}

// A job that ended between the two objects, or an object that was deleted.
func TestMissingHalf(t *testing.T) {
	first, firstPublic := newKey(t)
	t.Run("no public keys", func(t *testing.T) {
		private, public := ensure(t, fake.NewClientset(secret(first)))
		require.Equal(t, first, private)
		require.Equal(t, firstPublic, public)
	})
	t.Run("empty ConfigMap", func(t *testing.T) {
		_, public := ensure(t, fake.NewClientset(secret(first), configMap("")))
		require.Equal(t, firstPublic, public)
	})
	t.Run("ConfigMap without data", func(t *testing.T) {
		empty := configMap("")
		empty.Data = nil
		_, public := ensure(t, fake.NewClientset(secret(first), empty))
		require.Equal(t, firstPublic, public)
	})
	t.Run("no private key: the public key of the lost one is not trusted any more", func(t *testing.T) {
		client := fake.NewClientset(configMap(firstPublic))
		private, public := ensure(t, client)
		require.NotEqual(t, first, private)
		require.NotContains(t, public, firstPublic)
		kept, err := client.CoreV1().ConfigMaps("gpus").Get(t.Context(), "public", metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, "kept", kept.Data["notes"])
	})
}

// A private key that can't be read is an error, and nothing is overwritten: it can be the only copy.
func TestUnreadablePrivateKey(t *testing.T) {
	for name, text := range map[string]string{"empty": "", "damaged": "-----BEGIN PRIVATE KEY-----\nAA==\n-----END PRIVATE KEY-----\n"} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(secret(text))
			err := Ensure(t.Context(), client, objects, slog.New(slog.DiscardHandler))
			require.ErrorContains(t, err, "Secret gpus/private: private.pem: ")
			require.ErrorContains(t, err, "delete the Secret")
			for _, action := range client.Actions() {
				require.Equal(t, "get", action.GetVerb())
			}
		})
	}
}

func TestNamesAreRequired(t *testing.T) {
	for _, o := range []Objects{{}, {Namespace: "n", Secret: "s"}, {Namespace: "n", ConfigMap: "c"}, {Secret: "s", ConfigMap: "c"}} {
		require.ErrorContains(t, Ensure(t.Context(), fake.NewClientset(), o, slog.New(slog.DiscardHandler)), "--secret")
	}
}

func TestErrorsOfTheAPIServer(t *testing.T) {
	for _, tc := range []struct{ verb, resource, want string }{
		{"get", "secrets", "Secret gpus/private"}, {"create", "secrets", "Secret gpus/private"},
		{"get", "configmaps", "ConfigMap gpus/public"}, {"create", "configmaps", "ConfigMap gpus/public"},
	} {
		client := fake.NewClientset()
		client.PrependReactor(tc.verb, tc.resource, func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("forbidden")
		})
		err := Ensure(t.Context(), client, objects, slog.New(slog.DiscardHandler))
		require.ErrorContains(t, err, tc.want)
		require.ErrorContains(t, err, "forbidden")
	}
}

// The chart's Role has these rights, and no others (test/chart).
func TestRights(t *testing.T) {
	used := map[string]bool{}
	first, firstPublic := newKey(t)
	for _, client := range []*fake.Clientset{fake.NewClientset(), fake.NewClientset(secret(first)), fake.NewClientset(configMap(firstPublic))} {
		ensure(t, client)
		for _, action := range client.Actions() {
			used[action.GetVerb()+" "+action.GetResource().Resource] = true
		}
	}
	require.Equal(t, map[string]bool{
		"get secrets": true, "create secrets": true, "get configmaps": true, "create configmaps": true, "update configmaps": true,
	}, used)
}

// Two jobs at once, such as a retry while the first one still runs, agree on one key.
func TestTwoAtOnce(t *testing.T) {
	for range 3 {
		client := fake.NewClientset()
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				if err := Ensure(context.Background(), client, objects, slog.New(slog.DiscardHandler)); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		ensure(t, client)
		updates := 0
		for _, action := range client.Actions() {
			if action.GetVerb() == "update" {
				updates++
			}
		}
		require.Zero(t, updates)
	}
}
