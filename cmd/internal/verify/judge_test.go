package verify

import (
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuslice/gpuslice/monitor/verification"
	"github.com/gpuslice/gpuslice/monitor/view"
)

// with returns answers with other values; an empty one is removed.
func with(a answers, changes ...string) answers {
	b := answers{}
	for k, v := range a {
		b[k] = v
	}
	for i := 0; i < len(changes); i += 2 {
		if b[changes[i]] = changes[i+1]; changes[i+1] == "" {
			delete(b, changes[i])
		}
	}
	return b
}

const (
	limitBytes = "2147483648" // 2048 MiB
	heldBytes  = "268435456"
)

func TestRoom(t *testing.T) {
	free := view.GPU{UUID: "GPU-1", Healthy: true, GrantableMiB: 80000, GrantableCores: 100, GrantableReplicas: 10}
	change := func(f func(*view.GPU)) view.GPU {
		gpu := free
		f(&gpu)
		return gpu
	}
	used := change(func(g *view.GPU) { g.UUID, g.Index, g.GrantedContainers = "GPU-2", 1, 1 })
	for name, c := range map[string]struct {
		gpus []view.GPU
		uuid string
		want string
		has  [2]int
		why  string
	}{
		"the emptiest":       {gpus: []view.GPU{used, free}, want: "GPU-1", has: [2]int{30, 60}},
		"the one that is":    {gpus: []view.GPU{used, free}, uuid: "GPU-2", want: "GPU-2", has: [2]int{30, 60}},
		"by index":           {gpus: []view.GPU{used, free}, uuid: "1", want: "GPU-2", has: [2]int{30, 60}},
		"smaller shares":     {gpus: []view.GPU{change(func(g *view.GPU) { g.GrantedCores = 35 })}, want: "GPU-1", has: [2]int{20, 40}},
		"the smallest":       {gpus: []view.GPU{change(func(g *view.GPU) { g.GrantedCores = 70 })}, want: "GPU-1", has: [2]int{10, 20}},
		"no compute time":    {gpus: []view.GPU{change(func(g *view.GPU) { g.GrantedCores = 71 })}, why: "has 29 % free"},
		"just enough memory": {gpus: []view.GPU{change(func(g *view.GPU) { g.GrantedMemoryMiB = 80000 - 4096 })}, want: "GPU-1", has: [2]int{30, 60}},
		"no memory":          {gpus: []view.GPU{change(func(g *view.GPU) { g.GrantedMemoryMiB = 80000 - 4095 })}, why: "has 4095 MiB free"},
		"overbooked":         {gpus: []view.GPU{change(func(g *view.GPU) { g.GrantedMemoryMiB = 90000 })}, why: "has 0 MiB free"},
		"no replicas":        {gpus: []view.GPU{change(func(g *view.GPU) { g.GrantedContainers = 9 })}, why: "has 9 of 10 containers"},
		"unhealthy":          {gpus: []view.GPU{change(func(g *view.GPU) { g.Healthy, g.Unhealthy = false, "XID 79" })}, why: "is unhealthy: XID 79"},
		"cordoned":           {gpus: []view.GPU{change(func(g *view.GPU) { g.Cordoned = true })}, why: "is cordoned"},
		"MIG":                {gpus: []view.GPU{change(func(g *view.GPU) { g.MIGProfile = "1g.10gb" })}, why: "MIG device"},
		"no GPU":             {why: "this node has no GPU"},
		"another GPU":        {gpus: []view.GPU{free}, uuid: "GPU-3", why: "there is no GPU GPU-3"},
	} {
		got, err := choose(view.Node{GPUs: c.gpus}, c.uuid)
		if c.why != "" {
			require.ErrorContains(t, err, c.why, name)
			continue
		}
		require.NoError(t, err, name)
		require.Equal(t, c.want, got.gpu.UUID, name)
		require.Equal(t, c.has, got.cores, name)
	}
}

func TestEnforcement(t *testing.T) {
	preload, both, none := view.Container{Enforcement: "preload"}, view.Container{Enforcement: "preload+library"}, view.Container{Enforcement: "none"}
	for _, c := range []struct {
		of    []view.Container
		state verification.State
		found string
	}{
		{[]view.Container{preload, preload}, verification.OK, "preload"},
		{[]view.Container{preload, both}, verification.OK, "preload, preload+library"},
		{[]view.Container{preload, none}, verification.Failed, "none, preload"},
		{[]view.Container{preload, {}}, verification.Failed, ", preload"},
		{[]view.Container{preload}, verification.Failed, "1 of 2 containers have a share in the ledger"},
	} {
		row := judgeEnforcement(c.of)
		require.Equal(t, c.state, row.State, "%v", c.of)
		require.Equal(t, c.found, row.Found)
	}
}

func statesOf(rows []verification.Row) (all []verification.State) {
	for _, r := range rows {
		all = append(all, r.State)
	}
	return all
}

func TestInside(t *testing.T) {
	const ok, failed = verification.OK, verification.Failed
	good := answers{"limiter": "/.gpuslice/libvgpu.so", "limits_bytes": "4096", "usage_bytes": "4096", "device_nodes": "1", "end": "0"}
	for name, c := range map[string]struct {
		of   answers
		want []verification.State
	}{
		"good":                 {good, []verification.State{ok, ok}},
		"no limiter":           {with(good, "limiter", ""), []verification.State{failed, ok}},
		"no limits":            {with(good, "limits_bytes", "-1"), []verification.State{ok, failed}},
		"empty limits":         {with(good, "limits_bytes", "0"), []verification.State{ok, failed}},
		"no usage file":        {with(good, "usage_bytes", "-1"), []verification.State{ok, failed}},
		"it was killed":        {with(good, "end", "137"), []verification.State{failed, ok}},
		"nothing was answered": {answers{}, []verification.State{failed, failed}},
		"too late":             {answers{tooLate: "1"}, []verification.State{verification.NotRun, verification.NotRun}},
	} {
		require.Equal(t, c.want, statesOf(judgeInside(c.of)), name)
	}
	require.Equal(t, ok, judgeDevices(good).State)
	require.Equal(t, failed, judgeDevices(with(good, "device_nodes", "8")).State)
	require.Equal(t, failed, judgeDevices(with(good, "device_nodes", "0")).State)
	require.Equal(t, failed, judgeDevices(answers{}).State)
	require.Equal(t, verification.NotRun, judgeDevices(answers{tooLate: "1"}).State)
	require.Equal(t, ok, judgeHost(true, "").State)
	row := judgeHost(false, "no CDI spec")
	require.Equal(t, verification.NotRun, row.State)
	require.True(t, row.Optional)

	// What one of the two containers lacks counts.
	bare := with(good, "limiter", "")
	require.Equal(t, []verification.State{ok, ok}, statesOf(judgeBoth([2]answers{good, good})))
	require.Equal(t, []verification.State{failed, ok}, statesOf(judgeBoth([2]answers{bare, good})))
	rows := judgeBoth([2]answers{good, bare})
	require.Equal(t, []verification.State{failed, ok}, statesOf(rows))
	require.Equal(t, "second container: it is not", rows[0].Found)
	require.Equal(t, []verification.State{failed, verification.NotRun}, statesOf(judgeBoth([2]answers{bare, {tooLate: "1"}})))
}

func TestGPU(t *testing.T) {
	good := answers{"gpus": "1", "uuid": "GPU-1", "driver": "580.1", "end": "0"}
	for name, c := range map[string]struct {
		of           answers
		uuid, driver string
		want         verification.State
	}{
		"the granted one":           {good, "GPU-1", "580.1", verification.OK},
		"a second one":              {with(good, "gpus", "2"), "GPU-1", "580.1", verification.Failed},
		"none":                      {with(good, "gpus", ""), "GPU-1", "580.1", verification.Failed},
		"another one":               {good, "GPU-2", "580.1", verification.Failed},
		"no UUID":                   {with(good, "uuid", ""), "GPU-1", "580.1", verification.Failed},
		"another driver":            {good, "GPU-1", "580.2", verification.Failed},
		"NVML has no driver":        {with(good, "driver", ""), "GPU-1", "580.2", verification.OK},
		"the node does not know it": {good, "", "", verification.OK},
		"killed":                    {with(good, "end", "137"), "GPU-1", "580.1", verification.Failed},
		"too late":                  {with(good, "end", "142"), "GPU-1", "580.1", verification.NotRun},
		"no answer":                 {answers{}, "GPU-1", "580.1", verification.Failed},
	} {
		require.Equal(t, c.want, judgeGPU(c.of, c.uuid, c.driver).State, name)
	}
}

func TestView(t *testing.T) {
	const ok, failed = verification.OK, verification.Failed
	good := answers{
		"device_total_bytes": limitBytes, "cuda_total_bytes": limitBytes, "cuda_free_bytes": "1300000000", "held_bytes": heldBytes,
		"nvml_total_bytes": limitBytes, "nvml_used_bytes": "800000000", "end": "0",
	}
	const whole = "150754820096"
	for name, c := range map[string]struct {
		of   answers
		want []verification.State
	}{
		"good":                       {good, []verification.State{ok, ok}},
		"CUDA shows the whole GPU":   {with(good, "cuda_total_bytes", whole), []verification.State{failed, ok}},
		"so does cuDeviceTotalMem":   {with(good, "device_total_bytes", whole), []verification.State{failed, ok}},
		"all is free":                {with(good, "cuda_free_bytes", limitBytes), []verification.State{failed, ok}},
		"NVML shows the whole GPU":   {with(good, "nvml_total_bytes", whole), []verification.State{ok, failed}},
		"NVML shows others' memory":  {with(good, "nvml_used_bytes", "99000000000"), []verification.State{ok, failed}},
		"NVML does not show the own": {with(good, "nvml_used_bytes", "0"), []verification.State{ok, failed}},
		"no NVML":                    {with(good, "nvml_error", "NVML error 9", "nvml_total_bytes", ""), []verification.State{ok, failed}},
		"CUDA fails":                 {answers{"failed": "cuInit", "error": "CUDA_ERROR_NO_DEVICE", "end": "3"}, []verification.State{failed, failed}},
		"it was killed":              {with(good, "end", "137"), []verification.State{failed, failed}},
		"too late":                   {answers{"end": endedByAlarm}, []verification.State{verification.NotRun, verification.NotRun}},
		"values that are no sizes":   {with(good, "cuda_free_bytes", "-5", "nvml_used_bytes", "1e9"), []verification.State{failed, failed}},
	} {
		require.Equal(t, c.want, statesOf(judgeView(c.of, 2048)), name)
	}
	require.Equal(t, "cuInit: CUDA_ERROR_NO_DEVICE", judgeView(answers{"failed": "cuInit", "error": "CUDA_ERROR_NO_DEVICE", "end": "3"}, 2048)[1].Found)
}

func TestMemory(t *testing.T) {
	refused := answers{"allocated_mib": "1520", "result": "CUDA_ERROR_OUT_OF_MEMORY", "end": "0"}
	for name, c := range map[string]struct {
		of    answers
		state verification.State
		found string
	}{
		"refused":       {refused, verification.OK, "1520 MiB, then CUDA_ERROR_OUT_OF_MEMORY"},
		"at the limit":  {with(refused, "allocated_mib", "2048"), verification.OK, "2048 MiB, then CUDA_ERROR_OUT_OF_MEMORY"},
		"beyond":        {with(refused, "allocated_mib", "2064"), verification.Failed, "2064 MiB, then CUDA_ERROR_OUT_OF_MEMORY"},
		"not refused":   {with(refused, "allocated_mib", "2304", "result", "CUDA_SUCCESS"), verification.Failed, "2304 MiB, not refused"},
		"too early":     {with(refused, "allocated_mib", "1008"), verification.Failed, "1008 MiB, then CUDA_ERROR_OUT_OF_MEMORY"},
		"another error": {with(refused, "result", "CUDA_ERROR_UNKNOWN"), verification.Failed, "1520 MiB, then CUDA_ERROR_UNKNOWN"},
		"not supported": {with(refused, "allocated_mib", "0", "result", "CUDA_ERROR_NOT_SUPPORTED"), verification.NotRun, "the driver does not support it on this GPU"},
		"not any more":  {with(refused, "allocated_mib", "16", "result", "CUDA_ERROR_NOT_SUPPORTED"), verification.Failed, "16 MiB, then CUDA_ERROR_NOT_SUPPORTED"},
		"killed":        {with(refused, "end", "137"), verification.Failed, "the probe's command ended with status 137"},
		"no answer":     {answers{}, verification.Failed, "the probe ended"},
		"its alarm":     {with(refused, "end", "142"), verification.NotRun, "no answer in time"},
		"too late":      {answers{tooLate: "1"}, verification.NotRun, "no answer in time"},
	} {
		row := judgeMemory("alloc", "cuMemAlloc", c.of, 2048)
		require.Equal(t, c.state, row.State, name)
		require.Equal(t, c.found, row.Found, name)
		require.Equal(t, name == "not supported", row.Optional, name)
		require.Equal(t, "cuMemAlloc: 1024 to 2048 MiB, then CUDA_ERROR_OUT_OF_MEMORY", row.Expected)
	}
}

func TestShares(t *testing.T) {
	const ok, failed, notRun = verification.OK, verification.Failed, verification.NotRun
	pair := func(a, b, hadA, hadB string) [2]answers {
		return [2]answers{{"kernels": a, "had_percent": hadA, "end": "0"}, {"kernels": b, "had_percent": hadB, "end": "0"}}
	}
	good, equal, idle := pair("500", "1000", "33", "66"), pair("700", "700", "49", "49"), pair("200", "400", "20", "40")
	killed := pair("500", "1000", "33", "66")
	killed[1]["end"] = "137"
	slow := [2]answers{{tooLate: "1"}, {"end": endedByAlarm}}
	for name, c := range map[string]struct {
		rounds  [][2]answers
		state   verification.State
		decided bool
	}{
		"none":                       {nil, notRun, false},
		"one is not enough":          {[][2]answers{good}, notRun, false},
		"two":                        {[][2]answers{good, good}, ok, true},
		"at the bounds":              {[][2]answers{pair("413", "587", "41", "58"), pair("260", "740", "26", "74")}, ok, true},
		"one starved":                {[][2]answers{equal, good, good}, ok, true},
		"equal":                      {[][2]answers{equal, equal}, failed, true},
		"equal, once by chance":      {[][2]answers{good, equal, equal}, failed, true},
		"reversed":                   {[][2]answers{pair("1000", "500", "66", "33"), pair("1000", "500", "66", "33")}, failed, true},
		"too little":                 {[][2]answers{pair("250", "750", "25", "75"), pair("250", "750", "25", "75")}, failed, true},
		"one does not work":          {[][2]answers{pair("0", "1000", "0", "99"), pair("0", "1000", "0", "99")}, failed, true},
		"the GPU was idle":           {[][2]answers{idle, idle, idle, idle}, notRun, false},
		"to the end":                 {[][2]answers{idle, good, idle, equal, idle}, notRun, true},
		"none works":                 {[][2]answers{pair("0", "0", "0", "0"), pair("0", "0", "0", "0")}, notRun, false},
		"one is killed":              {[][2]answers{killed, killed}, failed, true},
		"the machine is slow":        {[][2]answers{slow, slow, slow, slow}, notRun, false},
		"slow, and good":             {[][2]answers{slow, good, slow, good}, ok, true},
		"one slow, the other killed": {[][2]answers{{slow[0], killed[1]}, {slow[0], killed[1]}}, failed, true},
		"no answers":                 {[][2]answers{{answers{}, answers{}}, {answers{}, answers{}}}, failed, true},
		"values that are no numbers": {[][2]answers{pair("NaN", "NaN", "NaN", "NaN"), pair("+Inf", "+Inf", "+Inf", "+Inf")}, notRun, false},
	} {
		row, decided := judgeShares(c.rounds, [2]int{30, 60})
		require.Equal(t, c.state, row.State, name)
		require.Equal(t, c.decided, decided, name)
		require.False(t, row.Optional)
		require.Equal(t, "with 30 and 60 %, the first has 26 to 41 % of both's work, in 2 of 5 rounds", row.Expected)
	}
	row, _ := judgeShares([][2]answers{equal, idle, killed}, [2]int{30, 60})
	require.Equal(t, "50.0 % (49 and 49 % of the GPU); 33.3 % (20 and 40 % of the GPU), not busy; the probe's command ended with status 137", row.Found)
}

func TestReportOfAudit(t *testing.T) {
	n := view.Node{Violations: []view.Violation{
		{Kind: hostProcess, Detail: "process 123 (python) is on GPU 0"},
		{Kind: noLimiter, Container: "ns/pod/first", Detail: "process 77 (probe) has no limiter"},
	}}
	require.Equal(t, "host-process: process 123 (python) is on GPU 0", reportOf(n, hostProcess, "123", ""))
	require.Empty(t, reportOf(n, hostProcess, "12", ""), "the beginning of another PID")
	require.Empty(t, reportOf(n, hostProcess, "77", ""), "of another kind")
	require.NotEmpty(t, reportOf(n, noLimiter, "5", "ns/pod/first"), "PIDs differ between PID namespaces")
	require.Empty(t, reportOf(n, noLimiter, "77", "ns/pod/second"))
	require.Equal(t, verification.Failed, judgeAudit(hostProcess, "", time.Second).State)
	require.Equal(t, "not reported within 1s", judgeAudit(hostProcess, "", time.Second).Found)
	require.Equal(t, verification.OK, judgeAudit(hostProcess, "x", time.Second).State)
}

// The containers of a pod have what the scheduler chose.
func TestSocketsChoose(t *testing.T) {
	s := Sockets{Pod: "ns/verify"}
	container := func(name, uuid string, memory int64, cores int) view.Container {
		return view.Container{Pod: s.Pod, Name: name, Shares: []view.Share{{UUID: uuid, MemoryMiB: memory, CorePercent: cores}}}
	}
	first, second := container("first", "GPU-1", 2048, 30), container("second", "GPU-1", 2048, 60)
	foreign := container("second", "GPU-1", 2048, 60)
	foreign.Pod = "other/verify"
	for _, c := range []struct {
		of  []view.Container
		why string
	}{
		{[]view.Container{second, foreign, first}, ""},
		{[]view.Container{first}, "container second of pod ns/verify has no share"},
		{[]view.Container{first, foreign}, "container second of pod ns/verify has no share"},
		{[]view.Container{first, container("second", "GPU-2", 2048, 60)}, "are on different GPUs"},
		{[]view.Container{first, container("second", "GPU-1", 1024, 60)}, "has 1024 MiB, not the 2048"},
		{[]view.Container{first, container("second", "GPU-1", 2048, 30)}, "request two different shares"},
		{[]view.Container{container("first", "GPU-1", 2048, 0), second}, "request two different shares"},
	} {
		got, err := s.choose(view.Node{GPUs: []view.GPU{{UUID: "GPU-0"}, {UUID: "GPU-1", Model: "H100"}}, Containers: c.of})
		if c.why != "" {
			require.ErrorContains(t, err, c.why)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, "H100", got.gpu.Model)
		require.Equal(t, [2]int{30, 60}, got.cores)
	}
}

// Probes that wait end when verify gives up; one that has no socket any more is no error.
func TestSocketsEnd(t *testing.T) {
	dir := t.TempDir()
	second, err := net.Listen("unix", filepath.Join(dir, "second.sock"))
	require.NoError(t, err)
	defer second.Close()
	Sockets{Dir: dir}.End()
	conn, err := second.Accept()
	require.NoError(t, err)
	defer conn.Close()
	_, err = conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
}
