package quota

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuslice/gpuslice/api"
)

func TestCheck(t *testing.T) {
	b := NewAccounts()
	require.False(t, b.Account("ns").Limited())
	require.NoError(t, b.Account("ns").Check(Charge{MemoryMiB: 1 << 40, Cores: 1 << 40}), "not limited")
	b.SetQuota("ns", "q", Quota{Limits: Limits{MemoryMiB: 10000, Cores: 100}})
	b.Charge("ns", "a", Charge{MemoryMiB: 6000, Cores: 50, GPUPercent: 50})
	account := b.Account("ns")
	assert.True(t, account.Limited())
	assert.Equal(t, Limits{4000, 50}, account.Left())
	require.NoError(t, account.Check(Charge{MemoryMiB: 4000, Cores: 50}))
	require.EqualError(t, account.Check(Charge{MemoryMiB: 4001}), "quota of namespace ns: memory in MiB: 4001 requested, 6000 of 10000 used")
	err := account.Check(Charge{Cores: 51})
	require.EqualError(t, err, "quota of namespace ns: cores: 51 requested, 50 of 100 used")
	var refused *Error
	require.ErrorAs(t, err, &refused)
	require.NoError(t, account.Minus(Charge{MemoryMiB: 6000, Cores: 50, GPUPercent: 50}).Check(Charge{MemoryMiB: 10000, Cores: 100}), "preemption's what if")
	require.Error(t, account.Check(Charge{MemoryMiB: 10000}), "the account itself is as it was")
	require.NoError(t, b.Account("other").Check(Charge{MemoryMiB: 1 << 40}))

	b.SetQuota("ns", "second", Quota{Limits: Limits{MemoryMiB: Unlimited, Cores: 40}})
	account = b.Account("ns")
	assert.Equal(t, Limits{4000, -10}, account.Left(), "of two quotas the lower of each")
	require.EqualError(t, account.Check(Charge{Cores: 1}), "quota of namespace ns: cores: 1 requested, 50 of 40 used")
	require.NoError(t, account.Check(Charge{MemoryMiB: 1}), "a pod that requests nothing of the exhausted resource")
	b.DropQuota("ns", "second")
	b.DropQuota("ns", "was never there")
	assert.Equal(t, Limits{4000, 50}, b.Account("ns").Left())
	b.DropQuota("ns", "q")
	assert.Equal(t, NoLimits, b.Account("ns").Left())
	assert.False(t, b.Account("ns").Limited())
}

func TestCheckNode(t *testing.T) {
	gpus, err := ParseGPUs(`{"a":{"pool":["public","wx"],"quota":{"M40":2,"P100":0}},"b":{"quota":{"M40":1}},"c":{}}`)
	require.NoError(t, err)
	b := NewAccounts()
	b.Charge("a", "before", Charge{GPUPercent: 150, Model: "M40"})
	b.Charge("a", "another model", Charge{GPUPercent: 800, Model: "H200"})
	b.SetGPUs(gpus)
	m40 := map[string]string{api.LabelTencentModel: "M40", api.LabelTencentPool: "wx"}
	for _, test := range []struct {
		description, namespace string
		node                   map[string]string
		percent                int64
		want                   string
	}{
		{"what is left", "a", m40, 50, ""},
		{"more", "a", m40, 51, "quota of namespace a: GPUs of model M40 in percent: 51 requested, 150 of 200 used"},
		{"a model with none", "a", map[string]string{api.LabelTencentModel: "P100", api.LabelTencentPool: "wx"}, 1, "1 requested, 0 of 0 used"},
		{"another pool", "a", map[string]string{api.LabelTencentModel: "M40", api.LabelTencentPool: "secret"}, 1,
			`quota of namespace a: the node's pool (label gaia.tencent.com/gpu-pool) is "secret", and the namespace may use only public, wx`},
		{"no pool", "a", map[string]string{api.LabelTencentModel: "M40"}, 1, `(label gaia.tencent.com/gpu-pool) is ""`},
		{"another model", "a", map[string]string{api.LabelTencentModel: "H200", api.LabelTencentPool: "wx"}, 1,
			`the namespace has no quota for the node's model "H200" (label gaia.tencent.com/gpu-model)`},
		{"no model", "a", map[string]string{api.LabelTencentPool: "wx"}, 1, "has no quota for the node's model"},
		{"any pool", "b", map[string]string{api.LabelTencentModel: "M40", api.LabelTencentPool: "secret"}, 100, ""},
		{"no GPUs at all", "c", m40, 1, "has no quota for"},
		{"not limited", "d", nil, 1 << 40, ""},
	} {
		t.Run(test.description, func(t *testing.T) {
			err := b.Account(test.namespace).CheckNode(test.node, Charge{GPUPercent: test.percent, Model: test.node[api.LabelTencentModel]})
			if test.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, test.want)
		})
	}
	b.Charge("a", "before", Charge{GPUPercent: 100, Model: "M40"})
	require.NoError(t, b.Account("a").CheckNode(m40, Charge{GPUPercent: 100, Model: "M40"}), "in place of the former charge")
	b.SetGPUs(nil)
	require.NoError(t, b.Account("c").CheckNode(m40, Charge{GPUPercent: 100, Model: "M40"}))
	assert.False(t, b.Account("c").Limited())
}

// Whatever is charged and refunded in whichever order, an account has the sum of what is
// charged now, an older view stays as it was, and an empty book is like a new one.
func TestAccountsAreTheSumOfPods(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b, model := NewAccounts(), map[string]entry{}
		namespaces, uids, models := []string{"a", "b"}, []string{"1", "2", "3", "4"}, []string{"", "M40", "P100"}
		sum := func(namespace string) (used Charge, byModel map[string]int64) {
			byModel = map[string]int64{}
			for _, e := range model {
				if e.namespace == namespace {
					used = used.add(e.charge, 1)
					byModel[e.charge.Model] += e.charge.GPUPercent
				}
			}
			for m, n := range byModel {
				if n == 0 {
					delete(byModel, m)
				}
			}
			used.Model = ""
			return used, byModel
		}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			uid := rapid.SampledFrom(uids).Draw(t, "pod")
			views := []*Account{b.Account("a"), b.Account("b")}
			before := []Account{*views[0], *views[1]}
			switch rapid.IntRange(0, 4).Draw(t, "what") {
			case 0:
				b.Release(uid)
				delete(model, uid)
			case 1:
				b.SetQuota(rapid.SampledFrom(namespaces).Draw(t, "namespace"), rapid.SampledFrom(uids).Draw(t, "quota"), Quota{Limits: Limits{MemoryMiB: rapid.Int64Range(0, 100).Draw(t, "limit"), Cores: Unlimited}})
			case 2:
				b.DropQuota(rapid.SampledFrom(namespaces).Draw(t, "namespace"), rapid.SampledFrom(uids).Draw(t, "quota"))
			default:
				e := entry{rapid.SampledFrom(namespaces).Draw(t, "namespace"), Charge{
					MemoryMiB: rapid.Int64Range(0, 5).Draw(t, "memory"), Cores: rapid.Int64Range(0, 5).Draw(t, "cores"),
					GPUPercent: rapid.Int64Range(0, 5).Draw(t, "percent"), Model: rapid.SampledFrom(models).Draw(t, "model"),
				}}
				b.Charge(e.namespace, uid, e.charge)
				model[uid] = e
			}
			for i, view := range views {
				require.Equal(t, before[i], *view, "a view never changes")
				used, byModel := sum(namespaces[i])
				now := b.Account(namespaces[i])
				require.Equal(t, used, now.Used)
				require.Len(t, now.models, len(byModel))
				for m, n := range byModel {
					require.Equal(t, n, now.models[m])
				}
			}
		}
		for _, uid := range uids {
			b.Release(uid)
			for _, namespace := range namespaces {
				b.DropQuota(namespace, uid)
			}
		}
		require.Equal(t, NewAccounts(), b)
	})
}

func BenchmarkAccounts(b *testing.B) {
	book := NewAccounts()
	book.SetQuota("ns", "q", Quota{Limits: Limits{MemoryMiB: 1 << 40, Cores: Unlimited}})
	c := Charge{MemoryMiB: 3000, Cores: 30, GPUPercent: 30, Model: "H200"}
	book.Charge("ns", "other", c)
	b.Run("charge and refund", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			book.Charge("ns", "uid", c)
			book.Release("uid")
		}
	})
	b.Run("view and check", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := book.Account("ns").Check(c); err != nil {
				b.Fatal(err)
			}
		}
	})
}
