package dra

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	metaapply "k8s.io/client-go/applyconfigurations/meta/v1"
	resourceapply "k8s.io/client-go/applyconfigurations/resource/v1"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/dra/devices"
)

// The condition of an allocated device, with its reasons.
const (
	conditionReady = "Ready"
	reasonPrepared = "Prepared"
	reasonRefused  = "Refused"
)

// deviceData is what status.devices has of a device: the limits in the containers of the ResourceClaim. Its fields are in the
// order in which the API server returns them.
type deviceData struct {
	Cores             int    `json:"cores"`
	MemoryEnforcement string `json:"memoryEnforcement,omitempty"` // Config.MemoryEnforcement
	MemoryMiB         int64  `json:"memoryMiB"`
	UUID              string `json:"uuid"`
}

// statusPatience bounds the writing of the statuses of one request. They are for people: the preparation does not depend on
// them.
const statusPatience = 2 * time.Second

// statusReport is the result of preparing a ResourceClaim.
type statusReport struct {
	claim   *resourceapi.ResourceClaim
	shares  []devices.Result
	refused error
}

// reportStatuses writes into the ResourceClaims' status which limits their devices have, or why they are refused. It writes
// only the devices of this driver, and only what has changed.
func (d *Driver) reportStatuses(ctx context.Context, reports []statusReport) {
	ctx, cancel := context.WithTimeout(ctx, statusPatience)
	defer cancel()
	for _, r := range reports {
		statuses, changed := deviceStatuses(r.claim, r.shares, r.refused, d.MemoryEnforcement)
		if !changed {
			continue
		}
		of := resourceapply.ResourceClaim(r.claim.Name, r.claim.Namespace).WithUID(r.claim.UID).
			WithStatus(resourceapply.ResourceClaimStatus().WithDevices(statuses...))
		_, err := d.Client.ResourceV1().ResourceClaims(r.claim.Namespace).ApplyStatus(ctx, of, metav1.ApplyOptions{FieldManager: api.DRADriver, Force: true})
		if err != nil {
			d.Log.Warn("the status of a ResourceClaim is not written", "claim", r.claim.Namespace+"/"+r.claim.Name, "uid", r.claim.UID, "error", err)
		}
	}
}

func deviceStatuses(claim *resourceapi.ResourceClaim, shares []devices.Result, refused error, memoryEnforcement string) (all []*resourceapply.AllocatedDeviceStatusApplyConfiguration, changed bool) {
	if claim.Status.Allocation == nil {
		return nil, false
	}
	condition := metav1.Condition{Type: conditionReady, Status: metav1.ConditionTrue, Reason: reasonPrepared}
	if refused != nil {
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, reasonRefused, refused.Error()
	}
	for _, r := range claim.Status.Allocation.Devices.Results {
		if r.Driver != api.DRADriver {
			continue
		}
		next := resourceapi.AllocatedDeviceStatus{Driver: r.Driver, Pool: r.Pool, Device: r.Device}
		if r.ShareID != nil {
			next.ShareID = new(string(*r.ShareID))
		}
		if i := slices.IndexFunc(claim.Status.Devices, func(old resourceapi.AllocatedDeviceStatus) bool { return sameDevice(old, next) }); i >= 0 {
			next.Conditions = slices.Clone(claim.Status.Devices[i].Conditions)
			next.Data = claim.Status.Devices[i].Data
		}
		ready := condition
		if share := shareOf(shares, next); share != nil {
			data := deviceData{share.Share.CorePercent, memoryEnforcement, share.Share.MemoryMiB, share.Share.UUID}
			if refused == nil {
				ready.Message = fmt.Sprintf("its containers have %d MiB and %d %% of the compute time of GPU %s", data.MemoryMiB, data.Cores, data.UUID)
			}
			raw, _ := json.Marshal(data) // it has no type that fails
			if next.Data == nil || !bytes.Equal(next.Data.Raw, raw) {
				next.Data, changed = &runtime.RawExtension{Raw: raw}, true
			}
		}
		changed = meta.SetStatusCondition(&next.Conditions, ready) || changed
		all = append(all, applied(next))
	}
	return all, changed
}

func sameDevice(a, b resourceapi.AllocatedDeviceStatus) bool {
	return a.Driver == b.Driver && a.Pool == b.Pool && a.Device == b.Device && (a.ShareID == nil) == (b.ShareID == nil) && (a.ShareID == nil || *a.ShareID == *b.ShareID)
}

func shareOf(shares []devices.Result, of resourceapi.AllocatedDeviceStatus) *devices.Result {
	for i, s := range shares {
		if s.Pool == of.Pool && s.Device == of.Device && (s.ShareID == nil) == (of.ShareID == nil) && (s.ShareID == nil || string(*s.ShareID) == *of.ShareID) {
			return &shares[i]
		}
	}
	return nil
}

func applied(s resourceapi.AllocatedDeviceStatus) *resourceapply.AllocatedDeviceStatusApplyConfiguration {
	a := resourceapply.AllocatedDeviceStatus().WithDriver(s.Driver).WithPool(s.Pool).WithDevice(s.Device)
	if s.ShareID != nil {
		a.WithShareID(*s.ShareID)
	}
	if s.Data != nil {
		a.WithData(*s.Data)
	}
	for _, c := range s.Conditions {
		if c.Type == conditionReady {
			a.WithConditions(metaapply.Condition().WithType(c.Type).WithStatus(c.Status).WithReason(c.Reason).WithMessage(c.Message).WithLastTransitionTime(c.LastTransitionTime))
		}
	}
	return a
}
