package webhook

import (
	"github.com/spf13/pflag"

	"github.com/gpuslice/gpuslice/grant"
)

// AddFlags makes the options flags, with what they are now as the defaults. Names of
// resources are not among them: all of the scheduler's parts share those.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Address, "address", o.Address, "listen on this host:port")
	fs.StringVar(&o.CertFile, "tls-cert-file", o.CertFile, "serve this certificate, which somebody else keeps (read again when it changes); the webhook keeps none of its own then")
	fs.StringVar(&o.KeyFile, "tls-key-file", o.KeyFile, "the key of --tls-cert-file")
	fs.DurationVar(&o.Linger, "linger", o.Linger, "go on so long, not ready any more, after SIGTERM: the API server learns late of it")
	c := &o.Certificate
	fs.StringVar(&c.Namespace, "namespace", c.Namespace, "the namespace of the webhook's Service and Secret")
	fs.StringVar(&c.Secret, "certificate-secret", c.Secret, "keep the webhook's own certificate in this Secret, for all replicas")
	fs.StringVar(&c.Service, "service", c.Service, "the Service by which the API server calls the webhook")
	fs.StringSliceVar(&c.Names, "certificate-name", c.Names, "a further host name or IP address by which the API server calls the webhook (repeatable)")
	fs.StringVar(&c.Mutating, "mutating-configuration", c.Mutating, "keep the caBundle of this MutatingWebhookConfiguration; empty: of none")
	fs.StringVar(&c.Validating, "validating-configuration", c.Validating, "keep the caBundle of this ValidatingWebhookConfiguration; empty: of none")

	fs.StringVar(&o.SchedulerName, "scheduler-name", o.SchedulerName, "the scheduler of pods that ask for GPUs and name none; empty: leave them with default-scheduler")
	fs.StringSliceVar(&o.OurSchedulers, "our-scheduler", o.OurSchedulers, "another scheduler that gives GPUs (repeatable)")
	fs.Var(&o.ForeignSchedulers, "foreign-schedulers", "pods that ask for GPUs and name any other scheduler: deny, or leave (they run without GPUs)")
	fs.StringVar(&o.RuntimeClass, "runtime-class", o.RuntimeClass, "the runtime class of pods that ask for GPUs and name none; empty: leave them without")
	fs.StringVar(&o.RequiredPlugin, "required-plugin", o.RequiredPlugin, "let NRI refuse containers with GPUs while this plugin is away; empty: require none")
	fs.BoolVar(&o.TaskPriority, "task-priority", o.TaskPriority, "set CUDA_TASK_PRIORITY by "+o.Request.Names.Priority+", for HAMi's node half")
	fs.BoolVar(&o.AllowPrivileged, "allow-privileged", o.AllowPrivileged, "admit GPU requests of containers that are privileged, have CAP_SYS_ADMIN, or are in a pod with hostPID, although they can open all GPUs of the node")
	fs.StringSliceVar(&o.PrivilegedNamespaces, "privileged-namespace", o.PrivilegedNamespaces, "a namespace in which such GPU requests are admitted (repeatable)")
	fs.BoolVar(&o.AllowNodeName, "allow-node-name", o.AllowNodeName, "let pods with spec.nodeName ask for GPUs, though the scheduler gives them none")
	fs.StringSliceVar(&o.Writers, "annotation-writer", o.Writers, "a user that may write the scheduler's annotations (repeatable)")
	fs.StringSliceVar(&o.ToleratedNamespaces, "tolerated-namespace", o.ToleratedNamespaces, "a namespace whose pods may have "+grant.AnnotationTolerance+" (repeatable)")
	fs.StringSliceVar(&o.ToleratedUsers, "tolerated-user", o.ToleratedUsers, "a user whose pods may have "+grant.AnnotationTolerance+" (repeatable)")
}

// Set is pflag's; Rules.Validate says what is wrong with it.
func (f *Foreign) Set(value string) error { *f = Foreign(value); return nil }

// String is pflag's.
func (f *Foreign) String() string { return string(*f) }

// Type is pflag's.
func (f *Foreign) Type() string { return "deny|leave" }
