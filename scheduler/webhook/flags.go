package webhook

import (
	"github.com/spf13/pflag"

	"github.com/gpuslice/gpuslice/api"
)

// AddFlags adds flags with the current values as defaults.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Address, "address", o.Address, "listen on this host:port")
	fs.StringVar(&o.CertFile, "tls-cert-file", o.CertFile,
		"serve this certificate and reload it when it changes; empty: create one in --certificate-secret")
	fs.StringVar(&o.KeyFile, "tls-key-file", o.KeyFile, "private key of --tls-cert-file")
	fs.DurationVar(&o.Linger, "linger", o.Linger, "how long to continue serving, not ready, after SIGTERM, until the "+
		"API server uses another replica")
	c := &o.Certificate
	fs.StringVar(&c.Namespace, "namespace", c.Namespace, "namespace of the webhook's Service and Secret")
	fs.StringVar(&c.Secret, "certificate-secret", c.Secret, "Secret for the webhook's own certificate, shared by all replicas")
	fs.StringVar(&c.Service, "service", c.Service, "Service of the webhook")
	fs.StringSliceVar(&c.Names, "certificate-name", c.Names, "further host name or IP address of the webhook (repeatable)")
	fs.StringVar(&c.Mutating, "mutating-configuration", c.Mutating, "MutatingWebhookConfiguration to update with the caBundle; empty: none")
	fs.StringVar(&c.Validating, "validating-configuration", c.Validating,
		"ValidatingWebhookConfiguration to update with the caBundle; empty: none")

	fs.StringVar(&o.SchedulerName, "scheduler-name", o.SchedulerName,
		"scheduler for pods that request GPUs and name none; empty: default-scheduler")
	fs.StringSliceVar(&o.OurSchedulers, "our-scheduler", o.OurSchedulers, "another scheduler that assigns GPUs (repeatable)")
	fs.StringVar((*string)(&o.ForeignSchedulers), "foreign-schedulers", string(o.ForeignSchedulers), "pods that request GPUs "+
		"and name any other scheduler: `deny|leave` (leave: they run without GPUs)")
	fs.StringVar(&o.RuntimeClass, "runtime-class", o.RuntimeClass, "runtime class for pods that request GPUs and name none; empty: none")
	fs.StringVar(&o.RequiredPlugin, "required-plugin", o.RequiredPlugin,
		"NRI plugin without which containers with GPUs are refused; empty: none")
	fs.BoolVar(&o.TaskPriority, "task-priority", o.TaskPriority, "set CUDA_TASK_PRIORITY from "+o.Request.Names.Priority+", for HAMi on nodes")
	fs.BoolVar(&o.AllowPrivileged, "allow-privileged", o.AllowPrivileged,
		"admit GPU requests of containers that are privileged, have CAP_SYS_ADMIN, or are in a pod with hostPID, although "+
			"they can open all GPUs of the node")
	fs.StringSliceVar(&o.PrivilegedNamespaces, "privileged-namespace", o.PrivilegedNamespaces,
		"namespace in which the GPU requests of --allow-privileged are admitted (repeatable)")
	fs.BoolVar(&o.AllowNodeName, "allow-node-name", o.AllowNodeName,
		"admit GPU requests of pods with spec.nodeName, although the scheduler assigns them no GPUs")
	fs.StringSliceVar(&o.Writers, "annotation-writer", o.Writers, "user that may write the scheduler's annotations (repeatable)")
	fs.StringSliceVar(&o.ToleratedNamespaces, "tolerated-namespace", o.ToleratedNamespaces,
		"namespace in which pods may have "+api.AnnotationTolerance+" (repeatable)")
	fs.StringSliceVar(&o.ToleratedUsers, "tolerated-user", o.ToleratedUsers, "user that may set "+api.AnnotationTolerance+" (repeatable)")
}
