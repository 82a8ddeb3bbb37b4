package resourceclaims

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/grant"
	"github.com/gpuslice/gpuslice/scheduler/request"
)

const attributes = `device.attributes["` + api.DRADriver + `"]`

// uuidsAtOnce is how many UUIDs an expression for excluded ones has.
const uuidsAtOnce = 200

// selectors are the pod's rules about models, UUIDs and the isolation of shares. Each of them has to be true of a GPU.
func selectors(rules *request.Rules) ([]resourceapi.DeviceSelector, error) {
	var list []resourceapi.DeviceSelector
	add := func(key, expression string) error {
		if n := len(expression); n > resourceapi.CELSelectorExpressionMaxLength {
			return &request.Error{Key: key, Why: fmt.Sprintf("the request becomes a ResourceClaim here, with a selector of %d bytes, more than the "+
				"maximum of %d: use a shorter list", n, resourceapi.CELSelectorExpressionMaxLength)}
		}
		list = append(list, selector(expression))
		return nil
	}
	var err error
	if err == nil && len(rules.UseTypes) > 0 {
		err = add(api.AnnotationUseTypes, containsOne(rules.UseTypes))
	}
	if err == nil && len(rules.AvoidTypes) > 0 {
		err = add(api.AnnotationAvoidTypes, "!("+containsOne(rules.AvoidTypes)+")")
	}
	if err == nil && len(rules.UseUUIDs) > 0 {
		err = add(api.AnnotationUseUUIDs, isOne(rules.UseUUIDs))
	}
	if err == nil && rules.Isolation > grant.IsolationAny {
		expression := `"` + api.DRAAttributeIsolation + `" in ` + attributes // agents of earlier versions do not publish it, and check nothing
		if rules.Isolation == grant.IsolationDriver {
			expression += ` && ` + attributes + `.` + api.DRAAttributeIsolation + ` == "` + api.IsolationDriver + `"`
		}
		err = add(api.AnnotationIsolation, expression)
	}
	for uuids := range slices.Chunk(rules.AvoidUUIDs, uuidsAtOnce) {
		if err == nil {
			err = add(api.AnnotationAvoidUUIDs, "!("+isOne(uuids)+")")
		}
	}
	return list, err
}

func selector(expression string) resourceapi.DeviceSelector {
	return resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}
}

// containsOne is request.Rules.TypeFits: the model contains one of the texts, which are in lower case. With optional values the API
// server would estimate a cost above its limit.
func containsOne(texts []string) string {
	return `"` + api.DRAAttributeModel + `" in ` + attributes + ` && ` + literals(texts) +
		`.exists(part, ` + attributes + `.` + api.DRAAttributeModel + `.lowerAscii().contains(part))`
}

func isOne(uuids []string) string {
	return attributes + `.` + api.DRAAttributeUUID + ` in ` + literals(uuids)
}

// literals is a list of CEL strings. The escapes of Go are CEL's too.
func literals(texts []string) string {
	quoted := make([]string, len(texts))
	for i, text := range texts {
		quoted[i] = strconv.QuoteToASCII(text)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// ofSize selects GPUs with this memory.
func ofSize(mebibytes int64) resourceapi.DeviceSelector { return compareSize(mebibytes, "==") }

// atLeast selects devices with this memory or more.
func atLeast(mebibytes int64) resourceapi.DeviceSelector { return compareSize(mebibytes, ">=") }

func compareSize(mebibytes int64, operator string) resourceapi.DeviceSelector {
	size := mib(mebibytes)
	return selector(`device.capacity["` + api.DRADriver + `"].` + api.DRACapacityMemory + `.compareTo(quantity("` + size.String() + `")) ` + operator + ` 0`)
}
