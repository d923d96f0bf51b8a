{{/* The prefix of all names. */}}
{{- define "bireme.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- $full | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The name of everything that is the operator's own. */}}
{{- define "bireme.operator" -}}
{{- printf "%s-operator" (include "bireme.fullname" .) -}}
{{- end -}}

{{- define "bireme.account" -}}
{{- default (include "bireme.operator" .) .Values.serviceAccount.name -}}
{{- end -}}

{{- define "bireme.masterKey" -}}
{{- default (printf "%s-master-key" (include "bireme.fullname" .)) .Values.masterKey.existingSecret -}}
{{- end -}}

{{/* What a Deployment selects by, which may never change. */}}
{{- define "bireme.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "bireme.labels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: bireme
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* (dict "root" $ "image" .Values.image.worker): registry/name:tag, or @digest. */}}
{{- define "bireme.image" -}}
{{- $image := .root.Values.image -}}
{{- with $image.registry }}{{ . | trimSuffix "/" }}/{{ end -}}
{{- .image.name -}}
{{- if .image.digest }}@{{ .image.digest }}{{ else }}:{{ default .root.Chart.AppVersion $image.tag }}{{ end -}}
{{- end -}}

{{/* The namespaces of the mode Namespaces, as a JSON list. */}}
{{- define "bireme.namespaces" -}}
{{- default (list .Release.Namespace) .Values.scope.namespaces | uniq | toJson -}}
{{- end -}}

{{- define "bireme.testNamespace" -}}
{{- if .Values.test.namespace -}}{{ .Values.test.namespace }}
{{- else if eq .Values.scope.mode "Namespaces" -}}{{ first (include "bireme.namespaces" . | fromJsonArray) }}
{{- else -}}{{ .Release.Namespace }}
{{- end -}}
{{- end -}}

{{/* What no schema can say: values that only together make no sense. */}}
{{- define "bireme.validate" -}}
{{- if and (eq .Values.scope.mode "Cluster") .Values.scope.namespaces -}}
{{- fail "scope.namespaces is only read with scope.mode: Namespaces; set that, or leave scope.namespaces empty" -}}
{{- end -}}
{{- if and (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) -}}
{{- fail "serviceAccount.create is false: name the service account in serviceAccount.name" -}}
{{- end -}}
{{- end -}}
