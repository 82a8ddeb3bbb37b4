package migrating

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/scheduler"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

// asked is a case of testdata/requests.yaml.
type asked struct {
	Pod             string            `json:"pod"`
	Annotations     map[string]string `json:"annotations"`
	LimitsWholeGPUs bool              `json:"limitsWholeGPUs"`
	Theirs          string            `json:"theirs"`
	Here            string            `json:"here"`
	Row             string            `json:"row"`
	Note            string            `json:"note"`
}

func (a *asked) expected() string {
	if a.Here != "" {
		return a.Here
	}
	return a.Theirs
}

func requests(t *testing.T) (hami, gpuManager []asked) {
	t.Helper()
	var file struct {
		HAMi       []asked `json:"HAMi"`
		GPUManager []asked `json:"gpu-manager"`
	}
	read(t, "requests.yaml", &file)
	return file.HAMi, file.GPUManager
}

func (a *asked) result(t *testing.T) string {
	t.Helper()
	text, initial := strings.CutPrefix(a.Pod, "init ")
	c := scheduler.Container{Name: "main", Resources: map[string]scheduler.Amount{}}
	if initial {
		c.Kind = scheduler.Init
	}
	for field := range strings.FieldsSeq(text) {
		name, value, _ := strings.Cut(field, "=")
		n, err := strconv.ParseInt(value, 10, 64)
		require.NoError(t, err)
		domain := "nvidia.com/"
		if strings.HasPrefix(name, "vcuda-") {
			domain = "tencent.com/"
		}
		c.Resources[domain+name] = scheduler.Amount{Value: n}
	}
	o := request.DefaultOptions()
	o.VcudaLimitsWholeGPUs = a.LimitsWholeGPUs
	r, err := request.FromPod(&scheduler.Pod{Annotations: a.Annotations, Containers: []scheduler.Container{c}}, o)
	switch {
	case err != nil:
		return "refused"
	case r == nil:
		return "none"
	}
	got := r.Containers[0]
	memory := strconv.FormatInt(got.MemoryMiB, 10)
	if got.MemoryMiB == 0 {
		memory = strconv.Itoa(got.MemoryPercent) + "%"
	}
	return fmt.Sprintf("%d/%s/%d", got.GPUs, memory, got.Cores)
}

func TestRequests(t *testing.T) {
	hami, gpuManager := requests(t)
	for _, a := range append(hami, gpuManager...) {
		t.Run(fmt.Sprint(a.Pod, a.Annotations, a.Note), func(t *testing.T) {
			require.Equal(t, a.expected(), a.result(t))
		})
	}
}

// rows are the first cells of the rows of the page's tables, by the heading above.
func rows(t *testing.T) map[string][]string {
	t.Helper()
	page, err := os.ReadFile("../../docs/MIGRATING.md")
	require.NoError(t, err)
	all, heading := map[string][]string{}, ""
	for line := range strings.Lines(string(page)) {
		if title, is := strings.CutPrefix(line, "## "); is {
			heading = strings.TrimSpace(title)
		}
		if cells := strings.Split(line, " | "); strings.HasPrefix(line, "| ") && len(cells) > 1 {
			all[heading] = append(all[heading], strings.TrimPrefix(cells[0], "| "))
		}
	}
	return all
}

// Every difference has a row on the page, and each row of a decision that differs has a case.
func TestDifferencesAreOnThePage(t *testing.T) {
	all := rows(t)
	onPage := map[string]bool{}
	for _, heading := range []string{"Pods", "Decisions that differ"} {
		require.NotEmpty(t, all[heading])
		for _, row := range all[heading] {
			onPage[row] = true
		}
	}
	named := map[string]bool{}
	check := func(name, row string, differs bool) {
		require.Equal(t, differs, row != "", "%s: a case has a row if, and only if, it differs", name)
		if differs {
			require.True(t, onPage[row], "%s: docs/MIGRATING.md has no row %q", name, row)
			named[row] = true
		}
	}
	hami, gpuManager := requests(t)
	for _, a := range append(hami, gpuManager...) {
		require.NotEqual(t, a.Theirs, a.Here, "%s: the result is the same", a.Pod)
		check(a.Pod, a.Row, a.Here != "")
	}
	for _, a := range Admissions(t) {
		require.NotEqual(t, a.Theirs, a.Here, "%s: the result is the same", a.Name)
		check(a.Name, a.Row, a.Here != "")
	}
	placedHAMi, placedGPUManager := Placements(t)
	for _, p := range slices.Concat(placedHAMi, placedGPUManager, scores(t), decisions(t)) {
		require.True(t, p.Here == nil || p.differs() > 0, "%s: the result is the same", p.Name)
		check(p.Name, p.Row, p.Here != nil)
	}
	page, err := os.ReadFile("../../docs/MIGRATING.md")
	require.NoError(t, err)
	for _, table := range []string{"| in the pod | HAMi | here |", "| HAMi | here | reason |", "| gpu-manager and gpu-admission | here | reason |"} {
		_, rest, found := strings.Cut(string(page), table)
		require.True(t, found, table)
		body, _, _ := strings.Cut(rest, "\n\n")
		for line := range strings.Lines(body) {
			if cells := strings.Split(line, " | "); len(cells) == 3 {
				row := strings.TrimPrefix(cells[0], "| ")
				require.True(t, named[row], "no case has the difference %q of docs/MIGRATING.md", row)
			}
		}
	}
}

// The page has the numbers of the cases.
func TestNumbersOnThePage(t *testing.T) {
	page, err := os.ReadFile("../../docs/MIGRATING.md")
	require.NoError(t, err)
	found := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^\| (HAMi|gpu-manager)'s (requests|admissions|placements|scores|decisions) \| (\d+) \| (\d+) \|$`).FindAllStringSubmatch(string(page), -1) {
		found[m[1]+" "+m[2]] = m[3] + " " + m[4]
	}
	want := map[string]string{}
	count := func(name string, n, equal int) { want[name] = fmt.Sprint(n, " ", equal) }
	hami, gpuManager := requests(t)
	for of, cases := range map[string][]asked{"HAMi": hami, "gpu-manager": gpuManager} {
		equal := 0
		for _, a := range cases {
			if a.Here == "" {
				equal++
			}
		}
		count(of+" requests", len(cases), equal)
	}
	admitted := Admissions(t)
	count("HAMi admissions", len(admitted), len(slices.DeleteFunc(slices.Clone(admitted), func(a Admission) bool { return a.Here != "" })))
	placedHAMi, placedGPUManager := Placements(t)
	for name, cases := range map[string][]Placement{"HAMi placements": placedHAMi, "gpu-manager placements": placedGPUManager,
		"HAMi scores": scores(t), "gpu-manager decisions": decisions(t)} {
		n, differ := 0, 0
		for _, p := range cases {
			n += len(p.Theirs)
			differ += p.differs()
		}
		count(name, n, n-differ)
	}
	require.Equal(t, want, found)
}
