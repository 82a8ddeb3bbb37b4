//go:build root

package limiter_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// exportRow is one name of a row of limiter/src/exports.txt.
type exportRow struct {
	class, name string
	pattern     *regexp.Regexp
}

func (r exportRow) hooked() bool {
	return slices.Contains([]string{"seam", "metered", "launch", "view"}, r.class)
}

// more reports whether a row has precedence over another that fits, too.
func (r exportRow) more(other *exportRow) bool {
	star, otherStar := strings.Contains(r.name, "*"), strings.Contains(other.name, "*")
	if star != otherStar {
		return otherStar
	}
	return len(r.name) > len(other.name)
}

const variant = `(_v[2-9])?(_ptsz|_ptds)?`

func exportRows(t *testing.T) []exportRow {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "limiter/src/exports.txt"))
	require.NoError(t, err)
	var rows []exportRow
	for _, line := range strings.Split(string(text), "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		names, why, ok := strings.Cut(line, " : ")
		require.True(t, ok && strings.TrimSpace(why) != "", "no reason: %s", line)
		fields := strings.Fields(names)
		class := fields[0]
		require.Contains(t, []string{"seam", "metered", "launch", "view", "query", "through"}, class, line)
		for _, name := range fields[1:] {
			rows = append(rows, exportRow{class: class, name: name,
				pattern: regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(name), `\*`, ".*") + variant + "$")})
		}
	}
	require.NotEmpty(t, rows)
	return rows
}

// deciding returns the row that decides about a name, or nil.
func deciding(rows []exportRow, name string) (best *exportRow) {
	for i := range rows {
		if rows[i].pattern.MatchString(name) && (best == nil || rows[i].more(best)) {
			best = &rows[i]
		}
	}
	return best
}

// exportedNames are the names of real drivers, and by list where each was found.
func exportedNames(t *testing.T) map[string]string {
	t.Helper()
	lists, err := filepath.Glob("testdata/*-lib*.txt")
	require.NoError(t, err)
	require.Len(t, lists, 3)
	names := map[string]string{}
	for _, list := range lists {
		text, err := os.ReadFile(list)
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			names[strings.Fields(line)[0]] = filepath.Base(list)
		}
	}
	return names
}

// kindOfHook maps the third word of a hook in hooks.def to its class.
var kindOfHook = map[string]string{
	"SEAM": "seam", "TAKES": "metered", "HOLDS": "metered", "GIVES": "metered", "CONTEXT": "metered",
	"LAUNCH": "launch", "CAPTURE": "launch", "VIEW": "view",
}

// The class of a hook is in two places, which must agree.
func TestHooksAreOfTheirClass(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "limiter/src/hooks.def"))
	require.NoError(t, err)
	rows := exportRows(t)
	found := regexp.MustCompile(`(?m)^HOOK\(\w+, (\w+), (\w+)\)`).FindAllStringSubmatch(string(text), -1)
	require.NotEmpty(t, found)
	for _, hook := range found {
		if row := deciding(rows, hook[1]); assert.NotNil(t, row, hook[1]) {
			assert.Equal(t, kindOfHook[hook[2]], row.class, "%s is %s in hooks.def", hook[1], hook[2])
		}
	}
}

// Every function of the real drivers has a row with its treatment; the hooks are exactly those of the rows
// with a hook; and each row matches a function.
func TestEveryExportIsClassified(t *testing.T) {
	rows, names, hooks := exportRows(t), exportedNames(t), hookedNames(t)
	used := map[string]bool{}
	for name, list := range names {
		row := deciding(rows, name)
		if !assert.NotNil(t, row, "%s of %s is not in limiter/src/exports.txt", name, list) {
			continue
		}
		used[row.name] = true
		if row.hooked() {
			assert.True(t, hooks[name], "%s of %s is %s in limiter/src/exports.txt, but not in hooks.def", name, list, row.class)
		}
	}
	for _, row := range rows {
		assert.True(t, used[row.name], "no function is %s (%s)", row.name, row.class)
	}
	for name, hooked := range hooks {
		row := deciding(rows, name)
		if hooked && assert.NotNil(t, row, "%s is hooked, but not in limiter/src/exports.txt", name) {
			assert.True(t, row.hooked(), "%s is hooked, but %s in limiter/src/exports.txt", name, row.class)
			assert.NotEmpty(t, names[name], "%s is hooked, but no driver has it", name)
		}
	}
}

// What the simulated driver has, real ones have too.
func TestSimulatedDriverHasRealNames(t *testing.T) {
	names := exportedNames(t)
	for _, name := range simSymbols(t) {
		assert.NotEmpty(t, names[name], "%s", name)
	}
}

// The rules, on names that would be missed by a careless one.
func TestExportRules(t *testing.T) {
	rows := exportRows(t)
	for name, class := range map[string]string{
		"cuMemAlloc_v2": "metered", "cuMemAllocHost_v2": "through", "cuMemAllocAsync_ptsz": "metered", "cuMemPoolGetAttribute": "query",
		"cuMemHostGetFlags": "query", "cuMemHostAlloc": "through", "cuGraphLaunch_ptsz": "launch", "cuGraphAddNode_v2": "through",
		"cuGraphGetNodes": "query", "cuCtxCreate_v4": "metered", "cuCtxGetDevice": "query", "nvmlDeviceGetMemoryInfo_v2": "view",
		"nvmlDeviceGetMemoryBusWidth": "query", "cuLaunchHostFunc": "through", "cuStreamGetCaptureInfo_v2_ptsz": "query",
	} {
		if row := deciding(rows, name); assert.NotNil(t, row, name) {
			assert.Equal(t, class, row.class, name)
		}
	}
	for _, name := range []string{"cuMemAllocate", "cuNewThing", "nvmlNewThing", "cuMemCreate_v1"} {
		assert.Nil(t, deciding(rows, name), name)
	}
}
