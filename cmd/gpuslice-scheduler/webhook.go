package main

import (
	"github.com/spf13/cobra"

	"github.com/gpuslice/gpuslice/scheduler/webhook"
)

func webhookCommand() *cobra.Command {
	var o common
	options := webhook.DefaultOptions()
	command := &cobra.Command{
		Use:   "webhook",
		Short: "Complete and validate new pods that request GPUs (admission webhook)",
		RunE: func(*cobra.Command, []string) error {
			args, err := o.args()
			if err != nil {
				return err
			}
			options.Request = args.Engine().Request
			options.Log = o.log()
			if options.CertFile == "" {
				if options.Client, err = o.client("gpuslice-webhook"); err != nil {
					return err
				}
			}
			ctx, stop := untilSignal()
			defer stop()
			return webhook.Run(ctx, options)
		},
	}
	o.flags(command.Flags())
	options.AddFlags(command.Flags())
	return command
}
