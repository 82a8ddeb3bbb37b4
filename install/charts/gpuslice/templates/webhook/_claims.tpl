{{/* Rights of the webhook for dra.claimNamespaces: it creates and removes ResourceClaimTemplates in these namespaces, and reads which pods
use them. The sizes of GPUs are in ResourceSlices, which have no namespace. */}}
{{- define "gpuslice.webhookClaims" -}}
{{- $name := printf "%s-webhook-claims" (include "gpuslice.fullname" .) }}
{{- $account := dict "kind" "ServiceAccount" "name" (printf "%s-webhook" (include "gpuslice.fullname" .)) "namespace" (include "gpuslice.namespace" .) }}
{{- $labels := include "gpuslice.labels" (list . "webhook") }}
{{- with .Values.dra.claimNamespaces }}
{{- $all := has "*" . }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ $name }}
  labels:
    {{- $labels | nindent 4 }}
rules:
- apiGroups: ["resource.k8s.io"]
  resources: ["resourceslices"]
  verbs: ["list"]
{{- if $all }}
{{- include "gpuslice.webhookTemplates" $ }}
{{- end }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ $name }}
  labels:
    {{- $labels | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ $name }}
subjects:
- {{ toJson $account }}
{{- if not $all }}
{{- range uniq . }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ $name }}
  namespace: {{ . }}
  labels:
    {{- $labels | nindent 4 }}
rules:
{{- include "gpuslice.webhookTemplates" $ }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ $name }}
  namespace: {{ . }}
  labels:
    {{- $labels | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ $name }}
subjects:
- {{ toJson $account }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "gpuslice.webhookTemplates" }}
- apiGroups: ["resource.k8s.io"]
  resources: ["resourceclaimtemplates"]
  verbs: ["get", "list", "create", "delete"]
- apiGroups: [""]
  resources: ["pods"]
  verbs: ["list"]
{{- end }}
