{{- define "tensortap.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "tensortap.fullname" -}}
{{- $name := include "tensortap.name" . -}}
{{- $full := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) -}}
{{- .Values.fullnameOverride | default $full | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- /* What the schema cannot see, because it is about several values or the release. */ -}}
{{- define "tensortap.check" -}}
{{- $full := include "tensortap.fullname" . -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $full) -}}
{{- fail (printf "%q cannot be the name of a Service, which begins with a letter and has no dot: name the release otherwise, or set fullnameOverride" $full) -}}
{{- end -}}
{{- with .Values.autoscaling -}}
{{- if and .enabled (gt (int .minReplicas) (int .maxReplicas)) -}}
{{- fail (printf "autoscaling.minReplicas (%d) is more than autoscaling.maxReplicas (%d)" (int .minReplicas) (int .maxReplicas)) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.serviceMonitor.enabled (not (dig "metrics" true .Values.settings)) -}}
{{- fail "serviceMonitor.enabled asks for /metrics, which settings.metrics: false takes away" -}}
{{- end -}}
{{- end -}}

{{- define "tensortap.selectorLabels" -}}
app.kubernetes.io/name: {{ include "tensortap.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tensortap.labels" -}}
{{ include "tensortap.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "tensortap.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (.Values.serviceAccount.create | ternary (include "tensortap.fullname" .) "default") -}}
{{- end -}}

{{- define "tensortap.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- /* What the controller has to know: one replica for a tensor (the hash is of the path alone, so that it holds for all of
its rows), bodies of 16 MiB, and answers that last. Buffering needs no word: the service sends X-Accel-Buffering. */ -}}
{{- define "tensortap.ingressAnnotations" -}}
{{- if eq .Values.ingress.controller "nginx" }}
nginx.org/lb-method: hash $uri consistent
nginx.org/client-max-body-size: 16m
nginx.org/proxy-read-timeout: 300s
nginx.org/proxy-send-timeout: 300s
nginx.org/proxy-max-temp-file-size: "0"
{{- else if eq .Values.ingress.controller "ingress-nginx" }}
nginx.ingress.kubernetes.io/upstream-hash-by: $uri
nginx.ingress.kubernetes.io/proxy-body-size: 16m
nginx.ingress.kubernetes.io/proxy-read-timeout: "300"
nginx.ingress.kubernetes.io/proxy-send-timeout: "300"
nginx.ingress.kubernetes.io/proxy-max-temp-file-size: "0"
{{- else if eq .Values.ingress.controller "haproxy" }}
haproxy.org/backend-config-snippet: |
  balance uri path-only
  hash-type consistent
haproxy.org/timeout-server: 300s
{{- else if eq .Values.ingress.controller "haproxy-ingress" }}
haproxy-ingress.github.io/balance-algorithm: uri path-only
haproxy-ingress.github.io/config-backend: hash-type consistent
haproxy-ingress.github.io/timeout-server: 300s
{{- end }}
{{- end -}}
