package limiter

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const turnGPU = "GPU-00000001-5151-4000-8000-000000000001"

func TestTurnID(t *testing.T) {
	id := TurnIDOf("c1", "")
	assert.NotZero(t, id)
	assert.Equal(t, id, TurnIDOf("c1", ""))
	assert.NotEqual(t, id, TurnIDOf("c1", "nonce"))
	assert.False(t, id.OfSlice())
	assert.True(t, SliceTurnID("c1").OfSlice())
	text, err := json.Marshal(id)
	require.NoError(t, err)
	var back TurnID
	require.NoError(t, json.Unmarshal(text, &back))
	assert.Equal(t, id, back)
	for _, bad := range []string{`""`, `"1"`, `"zzzzzzzzzzzzzzzz"`, `"00000000000000001"`, `1`} {
		assert.Error(t, json.Unmarshal([]byte(bad), &back), bad)
	}
}

func FuzzTurnID(f *testing.F) {
	f.Add("00000000000000ff")
	f.Add("+0000000000000ff")
	f.Fuzz(func(t *testing.T, text string) {
		var id TurnID
		if id.UnmarshalText([]byte(text)) == nil {
			require.Equal(t, strings.ToLower(text), id.String(), "it is one file's name")
		}
	})
}

func TestCreateTurns(t *testing.T) {
	state, id := t.TempDir(), TurnIDOf("c1", "")
	require.NoError(t, CreateTurns(state, []string{turnGPU}, id, true))
	path := TurnPath(state, turnGPU, id)
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.EqualValues(t, 4096, info.Size())
	assert.Equal(t, fs.FileMode(0o666), info.Mode(), "of any user, whatever the umask is")
	turn, err := ReadTurn(state, turnGPU, id)
	require.NoError(t, err)
	assert.Zero(t, turn)
	table, err := ReadTable(TablePath(state, turnGPU))
	require.NoError(t, err)
	assert.Equal(t, Table{FloorPercent: 1}, table)

	// A restored container keeps its file, a new one has another.
	was := inode(t, path)
	require.NoError(t, CreateTurns(state, []string{turnGPU}, id, false))
	assert.Equal(t, was, inode(t, path))
	old, err := os.Open(path)
	require.NoError(t, err)
	defer old.Close()
	require.NoError(t, CreateTurns(state, []string{turnGPU}, id, true))
	assert.NotEqual(t, was, inode(t, path))
	begin := make([]byte, 16)
	_, err = old.ReadAt(begin, 0)
	require.NoError(t, err)
	assert.Equal(t, make([]byte, 16), begin, "peers see that the file is not the container's any more")

	found := map[string]TurnID{}
	require.NoError(t, EachTurn(state, func(gpu string, id TurnID) { found[gpu] = id }))
	assert.Equal(t, map[string]TurnID{turnGPU: id}, found)
	require.NoError(t, RemoveTurns(state, []string{turnGPU}, id))
	require.NoError(t, RemoveTurns(state, []string{turnGPU}, id))
	assert.NoFileExists(t, path)
	assert.FileExists(t, TablePath(state, turnGPU))
	_, err = ReadTurn(state, turnGPU, id)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoError(t, RemoveTurns(filepath.Join(state, "none"), []string{turnGPU}, id))
}

func inode(t *testing.T, path string) uint64 {
	var st unix.Stat_t
	require.NoError(t, unix.Stat(path, &st))
	return st.Ino
}

func TestReadTurnOfWhatATenantWrote(t *testing.T) {
	state, id := t.TempDir(), TurnIDOf("c1", "")
	require.NoError(t, CreateTurns(state, []string{turnGPU}, id, true))
	path := TurnPath(state, turnGPU, id)
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	le.PutUint64(content[unsafe.Offsetof(turnFile{}.lag):], ^uint64(6))
	le.PutUint64(content[unsafe.Offsetof(turnFile{}.workUntil):], 5)
	require.NoError(t, os.WriteFile(path, content, 0o666))
	turn, err := ReadTurn(state, turnGPU, id)
	require.NoError(t, err)
	assert.Equal(t, Turn{Lag: -7, WorkUntil: 5}, turn)

	content[3]++
	require.NoError(t, os.WriteFile(path, content, 0o666))
	_, err = ReadTurn(state, turnGPU, id)
	require.ErrorIs(t, err, ErrTurn)
	require.NoError(t, os.Truncate(path, 100))
	_, err = ReadTurn(state, turnGPU, id)
	require.Error(t, err)
	require.NoError(t, os.Remove(path))
	require.NoError(t, unix.Mkfifo(path, 0o666))
	_, err = ReadTurn(state, turnGPU, id)
	require.Error(t, err, "and it does not wait")
}

func TestTrimTurns(t *testing.T) {
	state, long, short, whole := t.TempDir(), TurnIDOf("long", ""), TurnIDOf("short", ""), TurnIDOf("whole", "")
	for _, id := range []TurnID{long, short, whole} {
		require.NoError(t, CreateTurns(state, []string{turnGPU}, id, true))
	}
	require.NoError(t, os.Truncate(TurnPath(state, turnGPU, long), 1<<20))
	require.NoError(t, os.Truncate(TurnPath(state, turnGPU, short), 10))
	assert.Equal(t, map[TurnID]error{long: nil, short: nil}, trimTurns(t, nil, state))
	for _, id := range []TurnID{long, short, whole} {
		info, err := os.Stat(TurnPath(state, turnGPU, id))
		require.NoError(t, err)
		assert.EqualValues(t, 4096, info.Size())
	}
}

// trimTurns returns the changed files, with the errors of those that could not be restored.
func trimTurns(t *testing.T, h *Holder, state string) map[TurnID]error {
	t.Helper()
	found := map[TurnID]error{}
	assert.NoError(t, h.TrimTurns(state, func(_ string, id TurnID, err error) { found[id] = err }))
	return found
}

func TestHolderLeavesNoLeaseOnTurns(t *testing.T) {
	state, first, second := t.TempDir(), TurnIDOf("first", ""), TurnIDOf("second", "")
	var h Holder
	require.NoError(t, h.CreateTurns(state, []string{turnGPU}, first, true))
	require.NoError(t, CreateTurns(state, []string{turnGPU}, second, true))
	_, err := lease(t, TurnPath(state, turnGPU, first), unix.F_WRLCK)
	require.ErrorIs(t, err, unix.EAGAIN)
	require.NoError(t, h.FollowTurns(state))
	for _, id := range []TurnID{first, second} {
		for _, kind := range []int{unix.F_RDLCK, unix.F_WRLCK} {
			_, err := lease(t, TurnPath(state, turnGPU, id), kind)
			assert.ErrorIs(t, err, unix.EAGAIN)
		}
	}
	require.NoError(t, h.Follow(func() (map[string]string, error) { return nil, nil }))
	assert.Len(t, h.names(), 2, "they belong to no list of claims")
	require.NoError(t, h.RemoveTurns(state, []string{turnGPU}, first))
	require.NoError(t, RemoveTurns(state, []string{turnGPU}, second))
	require.NoError(t, h.FollowTurns(state))
	assert.Empty(t, h.names())
}

func writeTable(path string, t Table) error {
	var w TableWriter
	return w.Write(path, t)
}

func TestTable(t *testing.T) {
	state := t.TempDir()
	require.NoError(t, CreateTurns(state, []string{turnGPU}, 1, true))
	path := TablePath(state, turnGPU)
	full := Table{FloorPercent: 100}
	for i := range MostTableShares {
		full.Shares = append(full.Shares, TableShare{ID: TurnID(i + 1), CorePercent: i % 101, SoftPercent: i % 7, Policy: Policy(i % 3), Priority: Priority(i % 2)})
	}
	few := Table{FloorPercent: 3, Shares: full.Shares[:2]}
	was := inode(t, path)
	for _, table := range []Table{few, full, {FloorPercent: 3}, few} {
		require.NoError(t, writeTable(path, table))
		got, err := ReadTable(path)
		require.NoError(t, err)
		assert.Equal(t, table, got)
	}
	assert.Equal(t, was, inode(t, path), "containers map it")

	require.NoError(t, writeTable(path, Table{Shares: few.Shares}))
	got, err := ReadTable(path)
	require.NoError(t, err)
	assert.Equal(t, few, got, "the floor stays")

	many := full
	many.Shares = append(many.Shares, TableShare{ID: 5000})
	require.NoError(t, writeTable(path, many))
	got, err = ReadTable(path)
	require.NoError(t, err)
	assert.Equal(t, full, got, "no more fit")
	assert.ErrorIs(t, writeTable(filepath.Join(state, "none"), few), fs.ErrNotExist)
}

// Whatever a killed writer left, the next writes the whole table, and readers see no even sequence before.
func TestTableOfAKilledWriter(t *testing.T) {
	state := t.TempDir()
	require.NoError(t, CreateTurns(state, []string{turnGPU}, 1, true))
	path := TablePath(state, turnGPU)
	want := Table{FloorPercent: 2, Shares: []TableShare{{ID: 7, CorePercent: 30}}}
	for name, damage := range map[string]func(file *tableFile){
		"odd":      func(f *tableFile) { f.sequence |= 1 },
		"half":     func(f *tableFile) { f.sequence |= 1; f.shares[1000].id = 9 },
		"magic":    func(f *tableFile) { f.magic[2] = 0 },
		"checksum": func(f *tableFile) { f.shares[500].id++ },
		"count":    func(f *tableFile) { f.count = 1 << 30; f.crc32 = f.checksum() },
	} {
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		file := (*tableFile)(unsafe.Pointer(&content[0]))
		damage(file)
		sequence := file.sequence
		require.NoError(t, os.WriteFile(path, content, 0o644))
		_, err = ReadTable(path)
		require.ErrorIs(t, err, ErrTable, name)
		require.NoError(t, writeTable(path, want))
		got, err := ReadTable(path)
		require.NoError(t, err, name)
		assert.Equal(t, want, got, name)
		content, err = os.ReadFile(path)
		require.NoError(t, err)
		assert.Equal(t, sequence|1+1, (*tableFile)(unsafe.Pointer(&content[0])).sequence, name)
	}
}

// Readers map the table, as the limiter does: they never take a mixture for a table.
func TestReadersOfAChangingTable(t *testing.T) {
	state := t.TempDir()
	require.NoError(t, CreateTurns(state, []string{turnGPU}, 1, true))
	path := TablePath(state, turnGPU)
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	mapped, err := unix.Mmap(int(f.Fd()), 0, int(tableBytes), unix.PROT_READ, unix.MAP_SHARED)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(mapped)) }()
	live := (*tableFile)(unsafe.Pointer(&mapped[0]))

	const rounds = 2000
	done := make(chan error, 1)
	go func() {
		var err error
		for i := range rounds {
			table := Table{FloorPercent: i%100 + 1}
			for j := range (i * 37) % 1000 {
				table.Shares = append(table.Shares, TableShare{ID: TurnID(i*1000 + j + 1), CorePercent: i % 100})
			}
			err = errors.Join(err, writeTable(path, table))
		}
		done <- err
	}()
	for whole, finished := 0, false; ; {
		before := atomic.LoadUint32(&live.sequence)
		seen := *live
		if before%2 == 0 && before == atomic.LoadUint32(&live.sequence) && seen.crc32 == seen.checksum() {
			whole++
			for _, s := range seen.shares[:seen.count] {
				require.Equal(t, int(seen.floorPercent)-1, int(s.corePercent))
				require.Equal(t, int(seen.floorPercent)-1, int((s.id-1)/1000)%100)
			}
		}
		if finished {
			require.Positive(t, whole)
			return
		}
		select {
		case err := <-done:
			require.NoError(t, err)
			finished = true
		default:
		}
	}
}
