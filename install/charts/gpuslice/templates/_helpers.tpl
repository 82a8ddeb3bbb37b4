{{/* What objects are named after. */}}
{{- define "gpuslice.fullname" -}}
{{- $name := .Values.nameOverride | default .Chart.Name -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The namespace of all objects. */}}
{{- define "gpuslice.namespace" -}}
{{- .Values.namespaceOverride | default .Release.Namespace -}}
{{- end -}}

{{/* Labels that select a component's pods: (list $ "agent"). They never change. */}}
{{- define "gpuslice.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: gpuslice
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* Labels of a component's objects: (list $ "agent"). */}}
{{- define "gpuslice.labels" -}}
{{- $root := index . 0 -}}
{{ include "gpuslice.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels of a component's pods. */}}
{{- define "gpuslice.podLabels" -}}
{{ include "gpuslice.selector" . }}
{{- with (index . 0).Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "gpuslice.image" -}}
{{- $i := .Values.image -}}
{{- if $i.digest -}}
{{ $i.repository }}@{{ $i.digest }}
{{- else -}}
{{ $i.repository }}:{{ $i.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* The users that may write the scheduler's annotations, as JSON. */}}
{{- define "gpuslice.writers" -}}
{{- $scheduler := printf "system:serviceaccount:%s:%s-scheduler" (include "gpuslice.namespace" .) (include "gpuslice.fullname" .) -}}
{{- prepend .Values.admission.writers $scheduler | uniq | toJson -}}
{{- end -}}

{{/* The namespaces of pods that may tolerate a missing agent, as JSON. */}}
{{- define "gpuslice.tolerated" -}}
{{- prepend .Values.admission.toleratedNamespaces (include "gpuslice.namespace" .) | uniq | toJson -}}
{{- end -}}

{{/* The namespaces in which pods may be root of their node, as JSON. */}}
{{- define "gpuslice.privileged" -}}
{{- $operator := ternary (list .Values.gpuOperator.namespace) list .Values.gpuOperator.enabled -}}
{{- concat (list (include "gpuslice.namespace" .)) .Values.admission.privilegedNamespaces $operator | uniq | toJson -}}
{{- end -}}

{{/* CEL: container c can open every GPU of its node. */}}
{{- define "gpuslice.rootContainer" -}}
(c.?securityContext.?privileged.orValue(false) || c.?securityContext.?capabilities.?add.orValue([]).exists(k, k.upperAscii() in ['SYS_ADMIN', 'CAP_SYS_ADMIN', 'ALL', 'CAP_ALL']))
{{- end -}}

{{/* The namespaces of which pods use whole GPUs without a grant, as JSON. */}}
{{- define "gpuslice.exempt" -}}
{{- $operator := ternary (list .Values.gpuOperator.namespace) list .Values.gpuOperator.enabled -}}
{{- concat (get .Values.agent.config "exempt-namespaces" | default list) $operator | uniq | toJson -}}
{{- end -}}

{{/* The agent's configuration file. */}}
{{- define "gpuslice.agentConfig" -}}
{{- toYaml (merge (dict "exempt-namespaces" (fromJsonArray (include "gpuslice.exempt" .))) .Values.agent.config) -}}
{{- end -}}

{{/* The labels of which one, with the value "true", makes a node one with a GPU, as JSON. */}}
{{- define "gpuslice.gpuLabels" -}}
{{- list "gpuslice.io/has-gpu" "nvidia.com/gpu.present" "feature.node.kubernetes.io/pci-10de.present" "feature.node.kubernetes.io/pci-0300_10de.present" "feature.node.kubernetes.io/pci-0302_10de.present" | toJson -}}
{{- end -}}

{{/* What the default placement does in this cluster, as JSON: known: the chart is rendered with access to the cluster; nodes: the number
     of nodes that get an agent; lost: the nodes from which an upgrade would remove the agent although it describes GPUs there, or all
     nodes with an agent if no node gets one. */}}
{{- define "gpuslice.placement" -}}
{{- $a := .Values.agent -}}
{{- $operator := .Values.gpuOperator.enabled -}}
{{- $nodes := 0 -}}
{{- $lost := list -}}
{{- $all := list -}}
{{- $cluster := dict -}}
{{- if and $a.enabled (not $a.affinity) (not $a.nodeSelector) -}}
{{- $cluster = lookup "v1" "Node" "" "" -}}
{{- end -}}
{{- $agents := dict -}}
{{- if and $cluster .Release.IsUpgrade -}}
{{- $selector := fromYaml (include "gpuslice.selector" (list . "agent")) -}}
{{- range (lookup "v1" "Pod" (include "gpuslice.namespace" .) "").items -}}
{{- $labels := .metadata.labels | default dict -}}
{{- $is := true -}}
{{- range $key, $value := $selector -}}{{- if ne (get $labels $key) $value -}}{{- $is = false -}}{{- end -}}{{- end -}}
{{- if and $is .spec.nodeName -}}{{- $_ := set $agents .spec.nodeName true -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- $gpuLabels := fromJsonArray (include "gpuslice.gpuLabels" .) -}}
{{- range $cluster.items -}}
{{- $labels := .metadata.labels | default dict -}}
{{- $selected := false -}}
{{- if $operator -}}
{{- $selected = and (eq (get $labels "nvidia.com/gpu.present") "true") (eq (get $labels "nvidia.com/gpu.deploy.device-plugin") "false") -}}
{{- else -}}
{{- range $gpuLabels -}}{{- if eq (get $labels .) "true" -}}{{- $selected = true -}}{{- end -}}{{- end -}}
{{- end -}}
{{- if $selected -}}
{{- $nodes = add1 $nodes -}}
{{- else if hasKey $agents .metadata.name -}}
{{- $all = append $all .metadata.name -}}
{{- if hasKey (.metadata.annotations | default dict) "gpuslice.io/node-gpus" -}}{{- $lost = append $lost .metadata.name -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- if eq (int $nodes) 0 -}}{{- $lost = $all -}}{{- end -}}
{{- dict "known" (not (empty $cluster)) "nodes" $nodes "lost" $lost | toJson -}}
{{- end -}}

{{/* The command that has nodes get an agent. */}}
{{- define "gpuslice.labelNode" -}}
{{- ternary "nvidia.com/gpu.deploy.device-plugin=false --overwrite" "gpuslice.io/has-gpu=true" .Values.gpuOperator.enabled -}}
{{- end -}}

{{/* The agents' affinity. Without the operator's choice (nodeSelector, affinity), only nodes with a GPU get an agent, by the labels
     of NVIDIA's feature discovery, of Node Feature Discovery, or ours. NVIDIA's operator runs its device plugin on each node with a
     GPU that does not have the label nvidia.com/gpu.deploy.device-plugin=false: the agents run on those that have it. */}}
{{- define "gpuslice.agentAffinity" -}}
{{- $a := .Values.agent -}}
{{- if or $a.affinity $a.nodeSelector -}}
{{- with $a.affinity }}{{ toYaml . }}{{ end -}}
{{- else -}}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
    {{- if .Values.gpuOperator.enabled }}
    - matchExpressions:
      - {key: nvidia.com/gpu.present, operator: In, values: ["true"]}
      - {key: nvidia.com/gpu.deploy.device-plugin, operator: In, values: ["false"]}
    {{- else }}
    {{- range fromJsonArray (include "gpuslice.gpuLabels" .) }}
    - matchExpressions:
      - {key: {{ . }}, operator: In, values: ["true"]}
    {{- end }}
    {{- end }}
{{- end -}}
{{- end -}}

{{/* A JSON list as CEL writes it. */}}
{{- define "gpuslice.cel" -}}
{{- $quoted := list -}}
{{- range . -}}{{- $quoted = append $quoted (printf "'%s'" .) -}}{{- end -}}
[{{ join ", " $quoted }}]
{{- end -}}

{{/* The resources that ask for GPUs, as CEL's list. */}}
{{- define "gpuslice.asks" -}}
{{- $n := .Values.resourceNames -}}
{{- $all := list $n.count $n.memory $n.memoryPercentage $n.cores $n.priority $n.vcudaCore $n.vcudaMemory -}}
{{- include "gpuslice.cel" (without $all "-") -}}
{{- end -}}

{{/* The Secret with the scheduler's private keys. */}}
{{- define "gpuslice.privateKeys" -}}
{{- .Values.grantKey.existingSecret | default (printf "%s-grant-private-keys" (include "gpuslice.fullname" .)) -}}
{{- end -}}

{{/* The ConfigMap with the agents' public keys. It is not in the Secret, because a kubelet may read all of an object that a pod of its node mounts. */}}
{{- define "gpuslice.publicKeys" -}}
{{- .Values.grantKey.existingConfigMap | default (printf "%s-grant-public-keys" (include "gpuslice.fullname" .)) -}}
{{- end -}}

{{/* "true" if a Job has to create the keys: the operator has no keys of its own, and the cluster lacks one of the two objects. Without
     access to the cluster (helm template) it lacks both. */}}
{{- define "gpuslice.grantKeysMissing" -}}
{{- $k := .Values.grantKey -}}
{{- if and $k.enabled (not $k.existingSecret) (not $k.existingConfigMap) -}}
{{- $secret := lookup "v1" "Secret" (include "gpuslice.namespace" .) (include "gpuslice.privateKeys" .) -}}
{{- $configMap := lookup "v1" "ConfigMap" (include "gpuslice.namespace" .) (include "gpuslice.publicKeys" .) -}}
{{- if not (and (get ($secret.data | default dict) "private.pem") (get ($configMap.data | default dict) "public.pem")) -}}
true
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Annotations of what creates the keys, with its order: it runs before other objects are installed, and is removed then. */}}
{{- define "gpuslice.grantKeysHook" -}}
helm.sh/hook: pre-install,pre-upgrade
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}

{{/* The template of the Job that creates the keys. Root of its node can read them, so it runs where the scheduler runs. */}}
{{- define "gpuslice.grantKeysPod" -}}
{{- $s := .Values.scheduler -}}
metadata:
  labels:
    {{- include "gpuslice.podLabels" (list . "keys") | nindent 4 }}
  annotations:
    # The agents need the keys, so this pod starts on nodes where no container starts without an agent.
    gpuslice.io/tolerate-missing-plugins: "true"
spec:
  serviceAccountName: {{ include "gpuslice.fullname" . }}-grant-keys
  automountServiceAccountToken: true
  # The pods of failed attempts stay, with their logs.
  restartPolicy: Never
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $s.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- if or $s.hostNetwork (eq $s.mode "extender") }}
  hostNetwork: true
  dnsPolicy: ClusterFirstWithHostNet
  {{- end }}
  {{- with include "gpuslice.schedulerNodes" . }}
  {{- . | trim | nindent 2 }}
  {{- end }}
  securityContext:
    {{- include "gpuslice.podRestricted" . | nindent 4 }}
  containers:
  - name: grant-keys
    image: {{ include "gpuslice.image" . }}
    imagePullPolicy: {{ .Values.image.pullPolicy }}
    command: ["/usr/local/bin/gpuslice-scheduler", "grant-keys"]
    args:
    - --namespace={{ include "gpuslice.namespace" . }}
    - --secret={{ include "gpuslice.privateKeys" . }}
    - --config-map={{ include "gpuslice.publicKeys" . }}
    # `kubectl describe pod` shows why it failed.
    terminationMessagePolicy: FallbackToLogsOnError
    {{- with include "gpuslice.apiServerEnv" . }}
    env:
    {{- . | nindent 4 }}
    {{- end }}
    resources:
      requests: {cpu: 10m, memory: 32Mi}
      limits: {memory: 256Mi}
    securityContext:
      {{- include "gpuslice.restricted" . | nindent 6 }}
{{- end -}}

{{/* Where the scheduler's pods run. The extender's run beside the kube-schedulers. */}}
{{- define "gpuslice.schedulerNodes" -}}
{{- $s := .Values.scheduler -}}
{{- $extender := eq $s.mode "extender" -}}
{{- $selector := $s.nodeSelector | default (ternary (dict "node-role.kubernetes.io/control-plane" "") dict $extender) -}}
{{- $tolerations := $s.tolerations | default (ternary (list (dict "operator" "Exists" "effect" "NoSchedule")) list $extender) -}}
{{- with $selector -}}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{ end -}}
{{- with $tolerations -}}
tolerations:
  {{- toYaml . | nindent 2 }}
{{ end -}}
{{- with $s.affinity -}}
affinity:
  {{- toYaml . | nindent 2 }}
{{ end -}}
{{- end -}}

{{/* Where pods find the API server. */}}
{{- define "gpuslice.apiServerEnv" -}}
{{- with .Values.apiServer }}
{{- if .host }}
- {name: KUBERNETES_SERVICE_HOST, value: {{ .host | quote }}}
- {name: KUBERNETES_SERVICE_PORT, value: {{ .port | quote }}}
{{- end }}
{{- end }}
{{- end -}}

{{/* GPUSliceArgs: the settings that all of the scheduler's components share. */}}
{{- define "gpuslice.schedulerArgs" -}}
{{- $args := dict "apiVersion" "gpuslice.io/v1" "kind" "GPUSliceArgs" -}}
{{- if .Values.grantKey.enabled -}}
{{- $_ := set $args "grantPrivateKeyFile" "/etc/gpuslice/keys/private.pem" -}}
{{- end -}}
{{- $defaults := dict "count" "nvidia.com/gpu" "memory" "nvidia.com/gpumem" "memoryPercentage" "nvidia.com/gpumem-percentage" "cores" "nvidia.com/gpucores" "priority" "nvidia.com/priority" "vcudaCore" "tencent.com/vcuda-core" "vcudaMemory" "tencent.com/vcuda-memory" -}}
{{- $names := dict -}}
{{- range $key, $name := .Values.resourceNames -}}
{{- if ne $name (get $defaults $key) -}}{{- $_ := set $names $key $name -}}{{- end -}}
{{- end -}}
{{- if $names -}}{{- $_ := set $args "resources" $names -}}{{- end -}}
{{- toYaml (merge $args .Values.scheduler.settings) -}}
{{- end -}}

{{/* What every container is held to, but the agent's. */}}
{{- define "gpuslice.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: ["ALL"]}
{{- end -}}

{{/* Of pods that need no root. fsGroup: reads the keys. */}}
{{- define "gpuslice.podRestricted" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* Requests and limits without those that are null: of a limit of null the API server makes 0. */}}
{{- define "gpuslice.resources" -}}
{{- $all := dict -}}
{{- range $field, $of := . -}}
{{- if kindIs "map" $of -}}
{{- $set := dict -}}
{{- range $name, $quantity := $of -}}
{{- if not (kindIs "invalid" $quantity) -}}{{- $_ := set $set $name $quantity -}}{{- end -}}
{{- end -}}
{{- $of = $set -}}
{{- end -}}
{{- if $of -}}{{- $_ := set $all $field $of -}}{{- end -}}
{{- end -}}
{{- toYaml $all -}}
{{- end -}}

{{/* Replicas of one component on different nodes: (list $ "webhook"). */}}
{{- define "gpuslice.spread" -}}
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      {{- include "gpuslice.selector" . | nindent 6 }}
{{- end -}}

{{/* How the API server calls the webhook: (list $ "/mutate"). */}}
{{- define "gpuslice.webhookClient" -}}
{{- $root := index . 0 -}}
{{- with $root.Values.webhook.certificate.caBundle -}}
caBundle: {{ . }}
{{ end -}}
{{- if $root.Values.webhook.url -}}
url: {{ trimSuffix "/" $root.Values.webhook.url }}{{ index . 1 }}
{{- else -}}
service:
  namespace: {{ include "gpuslice.namespace" $root }}
  name: {{ include "gpuslice.fullname" $root }}-webhook
  path: {{ index . 1 }}
  port: 443
{{- end -}}
{{- end -}}
