package prepared_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/dra/prepared"
	"github.com/gpuslice/gpuslice/grant"
)

const (
	gpuA = "GPU-aaaaaaaa-0000-4000-8000-000000000001"
	gpuB = "GPU-bbbbbbbb-0000-4000-8000-000000000002"
	uidA = "11111111-0000-4000-8000-00000000000a"
	uidB = "22222222-0000-4000-8000-00000000000b"
)

func record(uid string) prepared.Record {
	return prepared.Record{UID: uid, Namespace: "ns", Name: "claim-" + uid[:1], Requests: map[string][]grant.Share{
		"gpu":   {{UUID: gpuA, MemoryMiB: 1000, CorePercent: 30}},
		"other": {{UUID: gpuB, MemoryMiB: 2000}},
	}}
}

func open(t *testing.T) (*prepared.Store, string) {
	dir := t.TempDir()
	store, err := prepared.Open(dir)
	require.NoError(t, err)
	return store, dir
}

func TestHas(t *testing.T) {
	store, _ := open(t)
	has := func() bool {
		is, err := store.Has(gpuB)
		require.NoError(t, err)
		return is
	}
	require.False(t, has())
	require.NoError(t, store.Write(record(uidA)))
	require.True(t, has())
	require.NoError(t, store.Remove(uidA))
	require.False(t, has())
	require.NoError(t, os.WriteFile(store.Path(".new-x"), nil, 0o600))
	require.False(t, has(), "not a record")
	require.NoError(t, os.WriteFile(store.Path(uidB), nil, 0o600))
	_, err := store.Has(gpuB)
	require.Error(t, err, "an unreadable record")
}

func TestStore(t *testing.T) {
	store, dir := open(t)
	_, err := store.Read(uidA)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoError(t, store.Remove(uidA))
	require.NoError(t, store.Write(record(uidA)))
	before, err := os.Stat(store.Path(uidA))
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), before.Mode().Perm())
	info, err := os.Stat(filepath.Dir(store.Path(uidA)))
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o700), info.Mode().Perm())

	for range 1000 {
		require.NoError(t, store.Write(record(uidA)))
	}
	after, err := os.Stat(store.Path(uidA))
	require.NoError(t, err)
	require.True(t, os.SameFile(before, after), "containers have mounted this file")

	// A restart, after a kill in the middle of a write.
	unfinished := filepath.Join(filepath.Dir(store.Path(uidA)), ".new-x.json.1")
	require.NoError(t, os.WriteFile(unfinished, []byte("{"), 0o600))
	require.NoError(t, os.Chmod(filepath.Dir(store.Path(uidA)), 0o755))
	store, err = prepared.Open(dir)
	require.NoError(t, err)
	require.NoFileExists(t, unfinished)
	read, err := store.Read(uidA)
	require.NoError(t, err)
	want := record(uidA)
	want.Version = 1
	require.Equal(t, want, read)

	changed := record(uidA)
	changed.Requests["gpu"][0].MemoryMiB++
	require.NoError(t, store.Write(changed))
	read, err = store.Read(uidA)
	require.NoError(t, err)
	require.EqualValues(t, 1001, read.Requests["gpu"][0].MemoryMiB)
	require.NoError(t, store.Remove(uidA))
	require.NoError(t, store.Remove(uidA))
	_, err = store.Read(uidA)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestInvalidRecords(t *testing.T) {
	store, dir := open(t)
	for description, change := range map[string]func(*prepared.Record){
		"a path as UID":     func(r *prepared.Record) { r.UID = "../../etc/passwd" },
		"a dot":             func(r *prepared.Record) { r.UID = "a.b" },
		"no UID":            func(r *prepared.Record) { r.UID = "" },
		"a long UID":        func(r *prepared.Record) { r.UID = strings.Repeat("a", 64) },
		"no name":           func(r *prepared.Record) { r.Name = "" },
		"no namespace":      func(r *prepared.Record) { r.Namespace = "" },
		"no request":        func(r *prepared.Record) { r.Requests = nil },
		"a subrequest":      func(r *prepared.Record) { r.Requests["a/b"] = r.Requests["gpu"] },
		"no share":          func(r *prepared.Record) { r.Requests["gpu"] = nil },
		"no memory":         func(r *prepared.Record) { r.Requests["gpu"][0].MemoryMiB = 0 },
		"a GPU twice":       func(r *prepared.Record) { r.Requests["gpu"] = append(r.Requests["gpu"], r.Requests["gpu"]...) },
		"too many cores":    func(r *prepared.Record) { r.Requests["gpu"][0].CorePercent = 101 },
		"not a GPU's UUID":  func(r *prepared.Record) { r.Requests["gpu"][0].UUID = "0" },
		"less than no core": func(r *prepared.Record) { r.Requests["gpu"][0].CorePercent = -1 },
	} {
		r := record(uidA)
		change(&r)
		require.Error(t, store.Write(r), description)
	}
	entries, err := os.ReadDir(filepath.Dir(store.Path(uidA)))
	require.NoError(t, err)
	require.Empty(t, entries)

	for description, content := range map[string]string{
		"empty":           "",
		"another version": `{"version":2,"uid":"` + uidA + `","namespace":"ns","name":"x","requests":{"gpu":[{"uuid":"` + gpuA + `","memoryMiB":1,"cores":0}]}}`,
		"of another":      `{"version":1,"uid":"` + uidB + `","namespace":"ns","name":"x","requests":{"gpu":[{"uuid":"` + gpuA + `","memoryMiB":1,"cores":0}]}}`,
		"without limits":  `{"version":1,"uid":"` + uidA + `","namespace":"ns","name":"x","requests":{"gpu":[{"uuid":"` + gpuA + `"}]}}`,
	} {
		require.NoError(t, os.WriteFile(store.Path(uidA), []byte(content), 0o600))
		_, err := store.Read(uidA)
		require.Error(t, err, description)
		require.NotErrorIs(t, err, fs.ErrNotExist)
		_, err = store.Grant(grant.Pod{Namespace: "ns", Name: "p"}, "main", []string{cdi(uidA, "gpu")}, []prepared.Mount{mount(store, uidA, "gpu")})
		require.Error(t, err, description)
	}
	_, err = store.Read("../node")
	require.ErrorIs(t, err, grant.ErrMalformed)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "node.json"), nil, 0o600))
	require.NoError(t, store.Remove("../node"))
	require.FileExists(t, filepath.Join(dir, "node.json"))
}

func cdi(uid, request string) string {
	return prepared.Device{UID: uid, Request: request}.QualifiedName()
}

func mount(s *prepared.Store, uid, request string) prepared.Mount {
	return prepared.Mount{Source: s.Path(uid), Destination: prepared.ContainerPath(prepared.Device{UID: uid, Request: request}.String())}
}

func TestGrant(t *testing.T) {
	store, dir := open(t)
	require.NoError(t, store.Write(record(uidA)))
	b := record(uidB)
	b.Requests["gpu"] = []grant.Share{{UUID: gpuA, MemoryMiB: 500, CorePercent: 80}, {UUID: gpuB, MemoryMiB: 1, CorePercent: 1}}
	require.NoError(t, store.Write(b))
	foreign := record("3")
	foreign.Namespace = "elsewhere"
	require.NoError(t, store.Write(foreign))
	at := func(m prepared.Mount, destination string) prepared.Mount { m.Destination = destination; return m }
	A, B := cdi(uidA, "gpu"), cdi(uidB, "gpu")
	mountA, mountB := mount(store, uidA, "gpu"), mount(store, uidB, "gpu")
	shareA := grant.Share{UUID: gpuA, MemoryMiB: 1000, CorePercent: 30}

	for _, test := range []struct {
		description string
		cdi         []string
		mounts      []prepared.Mount
		want        []grant.Share
		claims      []string
		kind        error
		says        string
	}{
		{description: "nothing"},
		{description: "others' devices and volumes", cdi: []string{"nvidia.com/gpu=0", "gpuslice.io/slice=a", "x"}, mounts: []prepared.Mount{{Source: "/data", Destination: "/data"}}},
		{description: "one", cdi: []string{A}, mounts: []prepared.Mount{mountA}, want: []grant.Share{shareA}, claims: []string{uidA + ".gpu"}},
		{description: "named twice after a restart of the kubelet", cdi: []string{A, A}, mounts: []prepared.Mount{mountA}, want: []grant.Share{shareA}, claims: []string{uidA + ".gpu"}},
		{description: "two requests", cdi: []string{cdi(uidA, "other"), A}, mounts: []prepared.Mount{mountA, mount(store, uidA, "other")},
			want: []grant.Share{shareA, {UUID: gpuB, MemoryMiB: 2000}}, claims: []string{uidA + ".gpu", uidA + ".other"}},
		{description: "two on one GPU are a sum, of 100 % at most", cdi: []string{A, B}, mounts: []prepared.Mount{mountB, mountA},
			want: []grant.Share{{UUID: gpuA, MemoryMiB: 1500, CorePercent: 100}, {UUID: gpuB, MemoryMiB: 1, CorePercent: 1}}, claims: []string{uidA + ".gpu", uidB + ".gpu"}},

		{description: "only the name", cdi: []string{A}, kind: prepared.ErrNotPrepared, says: "not mounted"},
		{description: "only one of two records", cdi: []string{A, B}, mounts: []prepared.Mount{mountB}, kind: prepared.ErrNotPrepared, says: "not mounted"},
		{description: "only the mount, as by hostPath", mounts: []prepared.Mount{mountA}, kind: prepared.ErrNotPrepared, says: "remove the volume"},
		{description: "another's record beside the own", cdi: []string{A}, mounts: []prepared.Mount{mountA, mountB}, kind: prepared.ErrNotPrepared, says: "remove the volume"},
		{description: "another's record in place of the own", cdi: []string{A}, mounts: []prepared.Mount{at(mountB, mountA.Destination)}, kind: prepared.ErrNotPrepared, says: "only the record"},
		{description: "another's record elsewhere", cdi: []string{A}, mounts: []prepared.Mount{mountA, at(mountB, "/data")}, kind: prepared.ErrNotPrepared, says: "remove the volume"},
		{description: "the own record elsewhere", cdi: []string{A}, mounts: []prepared.Mount{mountA, at(mountA, "/data")}, kind: prepared.ErrNotPrepared, says: "remove the volume"},
		{description: "the directory of all", cdi: []string{A}, mounts: []prepared.Mount{mountA, {Source: filepath.Dir(mountA.Source), Destination: "/data"}}, kind: prepared.ErrNotPrepared, says: "remove the volume"},
		{description: "the own record twice", cdi: []string{A}, mounts: []prepared.Mount{mountA, mountA}, kind: prepared.ErrNotPrepared, says: "only the record"},
		{description: "a volume over the records", cdi: []string{A}, mounts: []prepared.Mount{mountA, {Source: "tmpfs", Destination: "/.gpuslice-claims"}}, kind: prepared.ErrNotPrepared, says: "remove the volume"},
		{description: "a volume over it by a longer path", cdi: []string{A}, mounts: []prepared.Mount{mountA, {Source: "/x", Destination: "/data/../.gpuslice-claims/x"}}, kind: prepared.ErrNotPrepared, says: "remove the volume"},
		{description: "a longer path to a record", mounts: []prepared.Mount{{Source: dir + "/./prepared/../prepared/x", Destination: "/data"}}, kind: prepared.ErrNotPrepared, says: "remove the volume"},
		{description: "a file of the tenant", cdi: []string{A}, mounts: []prepared.Mount{{Source: "/tmp/forged.json", Destination: mountA.Destination}}, kind: prepared.ErrNotPrepared, says: "only the record"},
		{description: "another namespace's", cdi: []string{cdi("3", "gpu")}, mounts: []prepared.Mount{mount(store, "3", "gpu")}, kind: prepared.ErrNotPrepared, says: "another namespace"},
		{description: "not prepared", cdi: []string{cdi("4", "gpu")}, mounts: []prepared.Mount{mount(store, "4", "gpu")}, kind: prepared.ErrNotPrepared, says: "not prepared on this node"},
		{description: "a request without a GPU", cdi: []string{cdi(uidA, "none")}, mounts: []prepared.Mount{mount(store, uidA, "none")}, kind: prepared.ErrNotPrepared, says: "no GPU for the request"},
		{description: "a path", cdi: []string{cdi("../x", "gpu")}, mounts: []prepared.Mount{mount(store, "../x", "gpu")}, kind: grant.ErrMalformed, says: "must be gpuslice.io/claim=<UID>.<request>"},
		{description: "no request", cdi: []string{"gpuslice.io/claim=" + uidA}, mounts: []prepared.Mount{at(mountA, "/.gpuslice-claims/"+uidA)}, kind: grant.ErrMalformed, says: "must be gpuslice.io/claim=<UID>.<request>"},
	} {
		t.Run(test.description, func(t *testing.T) {
			got, err := store.Grant(grant.Pod{Namespace: "ns", Name: "p"}, "main", test.cdi, test.mounts)
			if test.kind != nil {
				require.ErrorIs(t, err, test.kind)
				require.ErrorContains(t, err, `pod ns/p container "main"`)
				require.ErrorContains(t, err, test.says)
				require.Nil(t, got)
				return
			}
			require.NoError(t, err)
			if test.want == nil {
				require.Nil(t, got)
				return
			}
			require.Equal(t, &grant.Grant{Container: "main", Shares: test.want, Source: grant.SourceResourceClaim, ResourceClaims: test.claims}, got)
		})
	}
}
