{{/* kube-scheduler's configuration with the plugin on; install/scheduler/config.yaml is made of it. */}}
{{- define "gpuslice.schedulerConfig" -}}
{{- if not .Values.scheduler.name }}
{{- fail "scheduler.name is empty with scheduler.mode=plugin: a kube-scheduler with a profile without a name is a second default-scheduler, for all pods of the cluster. Set a name (gpuslice-scheduler), or set scheduler.mode=extender" }}
{{- end -}}
# kube-scheduler's configuration, with the plugin on: for gpuslice-scheduler --config. It places pods that request GPUs and have
# schedulerName {{ .Values.scheduler.name }} (the webhook sets it); it can place all other pods too.
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
# The API server has fair queueing of its own. kube-scheduler's 50 requests a second are the limit long before it.
clientConnection:
  qps: 5000
  burst: 10000
  contentType: application/vnd.kubernetes.protobuf
# A Lease of its own: it runs beside the cluster's kube-scheduler.
leaderElection:
  leaderElect: true
  resourceNamespace: {{ include "gpuslice.namespace" . }}
  resourceName: {{ include "gpuslice.fullname" . }}-scheduler
# For most pods with GPUs the plugin names the best nodes of all, and this does not matter. It is for pods with volumes,
# pod affinity or spread constraints, and for pods without GPUs: 0 is kube-scheduler's default (42 % of 1,000 nodes), 100
# compares all nodes that fit.
percentageOfNodesToScore: {{ .Values.scheduler.percentageOfNodesToScore }}
profiles:
- schedulerName: {{ .Values.scheduler.name }}
  plugins:
    multiPoint:
      enabled:
      # The GPU score is 0 to 100: with 5 the node policy goes before how evenly CPU and memory are used (1 each). If the pod
      # or nodes have preferences, it is 0 to 10 (scoreWithPreferences), which leaves the choice to kube-scheduler's plugins
      # (affinity 2, spreading 2, PreferNoSchedule 3, images 1).
      - name: GPUSlice
        weight: {{ .Values.scheduler.weight }}
    # Must be before DefaultBinder; multiPoint does not guarantee this. It binds pods with GPUs and writes their grant with
    # the bind. DefaultBinder binds pods without GPUs.
    bind:
      enabled:
      - name: GPUSlice
  pluginConfig:
  # All settings: the manual of package scheduler/plugin (Args). All profiles need the same. grantPrivateKeyFile: the private keys
  # for the nodes' --grant-public-key-file; gpuQuota: where gpu-manager's quota is used, kube-system/gpuquota.
  - name: GPUSlice
    args:
      annotate: Binding
      {{- include "gpuslice.schedulerArgs" . | nindent 6 }}
  # Nodes have the count of GPUs in their allocatable. They have not what a GPU is asked for by: without this every node
  # would lack it ("Insufficient {{ .Values.resourceNames.memory }}").
  - name: NodeResourcesFit
    args:
      apiVersion: kubescheduler.config.k8s.io/v1
      kind: NodeResourcesFitArgs
      ignoredResources:
      {{- $n := .Values.resourceNames }}
      {{- range without (list $n.memory $n.memoryPercentage $n.cores $n.priority) "-" }}
      - {{ . }}
      {{- end }}
{{- end -}}
