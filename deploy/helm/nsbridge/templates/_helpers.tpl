{{/* Labels of an object: (list . "worker" "tale-7m"); the model is empty for gateway and scaler. */}}
{{- define "nsbridge.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: nsbridge
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- with index . 2 }}
nsbridge/model: {{ . | quote }}
{{- end }}
{{- end }}

{{- define "nsbridge.labels" -}}
{{ include "nsbridge.selector" . }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
{{- end }}

{{/* Name of the objects of a model, whose own name may have dots. */}}
{{- define "nsbridge.model" -}}
{{ printf "%s-worker-%s" (index . 0).Release.Name (index . 1 | replace "." "-") | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "nsbridge.image" -}}
{{- $image := .Values.image -}}
{{- if contains "@" $image.repository }}{{ $image.repository }}{{ else }}{{ $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}{{ end -}}
{{- end }}

{{/* Fields of every pod: no token of the cluster, no variables of its services, the image's user. */}}
{{- define "nsbridge.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  # Secrets are mounted as files of root that this group can read; a keyring accepts that.
  fsGroup: 10001
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{- define "nsbridge.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end }}

{{/* Egress of every pod: names, the broker, and AWS's services. */}}
{{- define "nsbridge.egress" -}}
egress:
  - ports:
      - {port: 53, protocol: UDP}
      - {port: 53, protocol: TCP}
  - ports:
      - {port: {{ .Values.networkPolicy.brokerPort }}, protocol: TCP}
      - {port: 443, protocol: TCP}
{{- end }}
