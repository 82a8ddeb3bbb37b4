package quota

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/scheduler"
)

// The table is what Kubernetes' evaluator (pkg/quota/v1/evaluator/core) decides.
func TestScope(t *testing.T) {
	high, batch, none := scheduler.Class{PriorityClass: "high"}, scheduler.Class{PriorityClass: "batch", Terminating: true, BestEffort: true}, scheduler.Class{}
	for _, test := range []struct {
		scope             Scope
		high, batch, none bool
	}{
		{nil, true, true, true},
		{Scope{{Name: "Terminating", Operator: Exists}}, false, true, false},
		{Scope{{Name: "NotTerminating", Operator: Exists}}, true, false, true},
		{Scope{{Name: "BestEffort", Operator: Exists}}, false, true, false},
		{Scope{{Name: "NotBestEffort", Operator: Exists}}, true, false, true},
		{Scope{{Name: "PriorityClass", Operator: Exists}}, true, true, false},
		{Scope{{Name: "PriorityClass", Operator: "DoesNotExist"}}, false, false, true},
		{Scope{{Name: "PriorityClass", Operator: "In", Values: []string{"high", "x"}}}, true, false, false},
		{Scope{{Name: "PriorityClass", Operator: "NotIn", Values: []string{"high"}}}, false, true, true},
		{Scope{{Name: "PriorityClass", Operator: "In", Values: []string{""}}}, false, false, false},
		{Scope{{Name: "PriorityClass", Operator: "Exists"}, {Name: "NotTerminating", Operator: Exists}}, true, false, false},
		{Scope{{Name: "CrossNamespacePodAffinity", Operator: Exists}}, false, false, false},
		{Scope{{Name: "VolumeAttributesClass", Operator: Exists}}, false, false, false},
	} {
		assert.Equal(t, test.high, test.scope.Matches(high), "%v", test.scope)
		assert.Equal(t, test.batch, test.scope.Matches(batch), "%v", test.scope)
		assert.Equal(t, test.none, test.scope.Matches(none), "%v", test.scope)
	}
}

func TestQuotaWithScope(t *testing.T) {
	b := NewAccounts()
	high := func(mib int64) Charge { return Charge{MemoryMiB: mib, Class: scheduler.Class{PriorityClass: "high"}} }
	b.Charge("ns", "before", high(2000))
	b.SetQuota("ns", "high", Quota{Limits: Limits{MemoryMiB: 10000, Cores: Unlimited}, Scope: Scope{{Name: "PriorityClass", Operator: "In", Values: []string{"high"}}}})
	b.Charge("ns", "a", high(5000))
	b.Charge("ns", "b", Charge{MemoryMiB: 90000})
	require.True(t, b.Account("ns").Limited())
	require.NoError(t, b.Account("ns").Check(Charge{MemoryMiB: 90000}), "it counts and limits only what it selects")
	require.NoError(t, b.Account("ns").Check(high(3000)))
	require.EqualError(t, b.Account("ns").Check(high(3001)), "quota of namespace ns: memory in MiB of ResourceQuota high: 3001 requested, 7000 of 10000 used")
	b.SetQuota("ns", "all", Quota{Limits: Limits{MemoryMiB: 97000, Cores: Unlimited}})
	require.EqualError(t, b.Account("ns").Check(high(1)), "quota of namespace ns: memory in MiB: 1 requested, 97000 of 97000 used")
	b.DropQuota("ns", "all")
	b.Release("before")
	require.NoError(t, b.Account("ns").Check(high(5000)))
	b.DropQuota("ns", "high")
	b.Release("a")
	b.Release("b")
	require.Equal(t, NewAccounts(), b)
}

func TestPool(t *testing.T) {
	b := NewAccounts()
	pooled := func(mib int64) Quota { return Quota{Limits: Limits{MemoryMiB: mib, Cores: Unlimited}, Pool: "p"} }
	b.SetQuota("a", "q", pooled(10000))
	b.SetQuota("b", "q", pooled(20000))
	b.SetQuota("other", "q", Quota{Limits: Limits{MemoryMiB: 1, Cores: Unlimited}})
	mib := func(n int64) Charge { return Charge{MemoryMiB: n} }
	require.NoError(t, b.Account("a").Check(mib(30000)), "it may borrow all")
	require.True(t, b.Account("a").Lends(mib(10000)))
	require.False(t, b.Account("a").Lends(mib(10001)))
	b.Charge("a", "1", mib(25000))
	require.EqualError(t, b.Account("b").Check(mib(5001)), "quota of namespace b: memory in MiB of the quota pool p: 5001 requested, 25000 of 30000 used")
	require.True(t, b.Account("b").Lends(mib(20000)), "they are its own")
	require.True(t, b.Account("b").Borrows("a", mib(1)))
	require.False(t, b.Account("b").Borrows("other", mib(1)))
	account := b.Account("b").With("a", mib(25000), -1)
	require.NoError(t, account.Check(mib(20000)), "what if the borrower's pod was evicted")
	require.False(t, account.Borrows("a", mib(1)))
	require.EqualError(t, b.Account("a").Plus(mib(5000)).Check(mib(1)), "quota of namespace a: memory in MiB of the quota pool p: 1 requested, 30000 of 30000 used")
	b.DropQuota("b", "q")
	require.Error(t, b.Account("a").Check(mib(1)), "nothing is left to borrow")
}
