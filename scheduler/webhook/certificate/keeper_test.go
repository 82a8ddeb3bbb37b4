package certificate

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

var conflict = apierrors.NewConflict(corev1.Resource("secrets"), "cert", nil)

// memory is a Store that several replicas write to.
type memory struct {
	mu      sync.Mutex
	bundle  Bundle
	version int
	saves   int
	fail    error
}

func (m *memory) Load(context.Context) (Bundle, string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.version == 0 {
		return Bundle{}, "", m.fail
	}
	return m.bundle, strconv.Itoa(m.version), m.fail
}

func (m *memory) Save(_ context.Context, b Bundle, version string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.version != 0 && version != strconv.Itoa(m.version) || m.version == 0 && version != "" {
		return conflict
	}
	m.bundle, m.version, m.saves = b, m.version+1, m.saves+1
	return nil
}

// announced keeps what was announced.
type announced struct {
	mu      sync.Mutex
	trusted []byte
	fail    error
}

func (a *announced) Announce(_ context.Context, trusted []byte) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.trusted = trusted
	return a.fail
}

func keeper(s Store, a *announced, now func() time.Time) *Keeper {
	return &Keeper{Store: s, Announce: a.Announce, Names: names, Now: now, Log: slog.New(slog.DiscardHandler)}
}

func TestReplicasAgree(t *testing.T) {
	store, api := &memory{}, &announced{}
	now := func() time.Time { return start }
	keepers := make([]*Keeper, 8)
	var all sync.WaitGroup
	for i := range keepers {
		keepers[i] = keeper(store, api, now)
		require.Error(t, keepers[i].Ready())
		all.Go(func() { _ = keepers[i].Sync(context.Background()) })
	}
	all.Wait()
	require.Equal(t, 1, store.saves, "one replica made it, and the others took it over")
	for _, k := range keepers {
		require.NoError(t, k.Sync(context.Background()))
		require.NoError(t, k.Ready())
		pair, err := k.GetCertificate(nil)
		require.NoError(t, err)
		first, err := keepers[0].GetCertificate(nil)
		require.NoError(t, err)
		require.Equal(t, first.Certificate, pair.Certificate)
	}
	require.Equal(t, 1, store.saves)
	require.Equal(t, store.bundle.Certs, api.trusted)
	require.NoError(t, trusts(api.trusted, serving(t, store.bundle, start), start))
}

func TestRenewalReachesReplicas(t *testing.T) {
	at := start
	now := func() time.Time { return at }
	store, api := &memory{}, &announced{}
	one, two := keeper(store, api, now), keeper(store, api, now)
	require.NoError(t, one.Sync(context.Background()))
	require.NoError(t, two.Sync(context.Background()))
	before, _ := two.GetCertificate(nil)
	for _, later := range []time.Duration{life - renew + time.Second, settle} { // until API servers trust the new one
		at = at.Add(later)
		require.NoError(t, one.Sync(context.Background()))
		require.NoError(t, two.Sync(context.Background()))
	}
	after, _ := two.GetCertificate(nil)
	require.NotEqual(t, before.Certificate, after.Certificate)
	require.Equal(t, 2, store.saves)
}

func TestKeeperServesIfAnnounceFails(t *testing.T) {
	refused := errors.New("forbidden")
	k := keeper(&memory{}, &announced{fail: refused}, func() time.Time { return start })
	require.ErrorIs(t, k.Sync(context.Background()), refused)
	require.NoError(t, k.Ready())
}

func TestKeeperServesIfLoadFails(t *testing.T) {
	store := &memory{}
	k := keeper(store, &announced{}, func() time.Time { return start })
	require.NoError(t, k.Sync(context.Background()))
	store.fail = errors.New("the API server is unreachable")
	require.ErrorIs(t, k.Sync(context.Background()), store.fail)
	require.NoError(t, k.Ready())
}

func TestRunEndsWithItsContext(t *testing.T) {
	k := keeper(&memory{}, &announced{}, func() time.Time { return start })
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { k.Run(ctx); close(ended) }()
	require.Eventually(t, func() bool { return k.Ready() == nil }, time.Minute, time.Millisecond)
	cancel()
	<-ended
}
