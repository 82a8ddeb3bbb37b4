package doctor

import (
	"context"
	"io/fs"
	"strings"

	"github.com/gpuslice/gpuslice/monitor/verification"
)

// checkVerification warns if the isolation was not verified with the driver of now.
func checkVerification(_ context.Context, e *exam, v *verdict) {
	report, err := verification.ReadFS(e.Host, name(e.o.LibraryDir))
	verify := []string{"gpuslice verify"}
	if !e.needsOnlyEngines() {
		verify = []string{"helm test gpuslice -n gpuslice-system  # with verify.enabled=true (docs/VERIFY.md)"}
	}
	switch judged := verification.Judge(report, err, e.driverVersion()); judged.Status {
	case "True":
		v.ok(judged.Message)
	case "False":
		v.fail(judged.Message, append(verify, "see the checks in "+e.o.LibraryDir+"/"+verification.File)...)
	default:
		v.warn(judged.Message, verify...)
	}
}

// driverVersion is the version of the driver that is loaded; empty: not known.
func (e *exam) driverVersion() string {
	if data, err := fs.ReadFile(e.Host, "sys/module/nvidia/version"); err == nil {
		return strings.TrimSpace(string(data))
	}
	n, err := e.readNode()
	if err != nil {
		return ""
	}
	return n.Node.DriverVersion
}
