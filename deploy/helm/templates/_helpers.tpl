{{- /* Names, labels and the parts of pods that the Deployment, the check and the test share. */ -}}

{{- /* At most 57 characters, so that a suffix of 6 fits into a label of DNS. */ -}}
{{- define "sluicegate.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 57 | trimSuffix "-" -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 57 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 57 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "sluicegate.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "sluicegate.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "sluicegate.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- /* The Service and the policies select the pods of the Deployment alone, not those of the check. */ -}}
{{- define "sluicegate.podLabels" -}}
{{ include "sluicegate.selectorLabels" . }}
app.kubernetes.io/component: gateway
{{- end -}}

{{- define "sluicegate.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- define "sluicegate.adminPort" -}}
{{- regexFind "[0-9]+$" .Values.admin.listen -}}
{{- end -}}

{{- define "sluicegate.secretName" -}}
{{- .Values.admin.existingSecret | default (printf "%s-admin" (include "sluicegate.fullname" .)) -}}
{{- end -}}

{{- /* The least number of pods. */ -}}
{{- define "sluicegate.replicas" -}}
{{- if .Values.autoscaling.enabled -}}
{{- .Values.autoscaling.minReplicas -}}
{{- else -}}
{{- .Values.replicaCount -}}
{{- end -}}
{{- end -}}

{{- /* gateway.yaml: the value `config`, the admin address, and the number of gateways for outages of Redis. */ -}}
{{- define "sluicegate.config" -}}
{{- $config := mustDeepCopy .Values.config -}}
{{- $admin := dict "name" "admin" "token" "${ADMIN_TOKEN}" -}}
{{- $metrics := dict "name" "metrics" "token" "${METRICS_TOKEN}" "allow" "read" -}}
{{- $_ := set $config "admin" (dict "listen" .Values.admin.listen "tokens" (list $admin $metrics)) -}}
{{- if and (hasKey $config "state") (hasKey $config.state "redis") -}}
{{- if not (hasKey $config.state.redis "nodes_at_least") -}}
{{- $_ := set $config.state.redis "nodes_at_least" (include "sluicegate.replicas" . | atoi) -}}
{{- end -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}

{{- /* What a reload does not apply. */ -}}
{{- define "sluicegate.restartParts" -}}
{{- list .Values.config.server.workers (.Values.config.log | default dict).format .Values.admin | toJson -}}
{{- end -}}

{{- /* The files of the ConfigMap. */ -}}
{{- define "sluicegate.files" -}}
gateway.yaml: |
  {{- include "sluicegate.config" . | nindent 2 }}
{{- range $name, $text := .Values.files }}
{{ $name }}: {{ $text | quote }}
{{- end }}
{{- end -}}

{{- /* A duration of gateway.yaml in seconds, rounded up. */ -}}
{{- define "sluicegate.seconds" -}}
{{- $number := regexFind "^[0-9]+" .span | atoi -}}
{{- $unit := regexFind "[a-z]+$" .span -}}
{{- if eq $unit "ms" -}}
{{- div (add $number 999) 1000 -}}
{{- else -}}
{{- mul $number (get (dict "s" 1 "m" 60 "h" 3600 "d" 86400) $unit) -}}
{{- end -}}
{{- end -}}

{{- define "sluicegate.gracePeriod" -}}
{{- $timeouts := .Values.config.server.timeouts -}}
{{- $drain := include "sluicegate.seconds" (dict "span" $timeouts.drain) | atoi -}}
{{- $shutdown := include "sluicegate.seconds" (dict "span" $timeouts.shutdown) | atoi -}}
{{- add $drain $shutdown 5 -}}
{{- end -}}

{{- define "sluicegate.podSecurity" -}}
runAsNonRoot: true
{{- with .Values.user }}
runAsUser: {{ int64 . }}
runAsGroup: {{ int64 . }}
fsGroup: {{ int64 . }}
fsGroupChangePolicy: OnRootMismatch
{{- end }}
seccompProfile: { type: RuntimeDefault }
{{- end -}}

{{- define "sluicegate.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end -}}

{{- /* The tokens and the variables of `env`. `early` is the check before the install, when the Secret of the chart does
       not exist yet, so it has other tokens. */ -}}
{{- define "sluicegate.env" -}}
{{- $secret := include "sluicegate.secretName" .root -}}
{{- $placeholder := and .early (not .root.Values.admin.existingSecret) -}}
{{- range $name, $key := dict "ADMIN_TOKEN" "admin-token" "METRICS_TOKEN" "metrics-token" }}
- name: {{ $name }}
  {{- if $placeholder }}
  value: {{ $key }}-of-the-check
  {{- else }}
  valueFrom: { secretKeyRef: { name: {{ $secret }}, key: {{ $key }} } }
  {{- end }}
{{- end }}
{{- with .root.Values.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "sluicegate.volumeMounts" -}}
- { name: config, mountPath: /etc/sluicegate, readOnly: true }
- { name: state, mountPath: /var/lib/sluicegate }
{{- with .Values.volumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* The pod that runs `check`. Its state is no claim, which another node may hold. */ -}}
{{- define "sluicegate.checkPod" -}}
restartPolicy: Never
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
securityContext: {{ include "sluicegate.podSecurity" .root | nindent 2 }}
containers:
  - name: check
    image: {{ include "sluicegate.image" .root | quote }}
    imagePullPolicy: {{ .root.Values.image.pullPolicy }}
    args: [check, /etc/sluicegate/gateway.yaml]
    env: {{ include "sluicegate.env" . | trim | nindent 6 }}
    securityContext: {{ include "sluicegate.containerSecurity" .root | nindent 6 }}
    # It reads the same files as the gateway.
    resources: {{ toYaml .root.Values.resources | nindent 6 }}
    volumeMounts: {{ include "sluicegate.volumeMounts" .root | nindent 6 }}
volumes:
  - { name: config, configMap: { name: {{ .configMap }} } }
  - { name: state, emptyDir: { sizeLimit: {{ .root.Values.persistence.size }} } }
{{- with .root.Values.volumes }}
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
