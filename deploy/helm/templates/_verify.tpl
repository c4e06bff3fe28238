{{- /* What no schema can say. Each mistake ends the rendering with a sentence of its own. */ -}}

{{- define "sluicegate.verify" -}}
{{- include "sluicegate.verifyConfig" . -}}
{{- include "sluicegate.verifyPorts" . -}}
{{- include "sluicegate.verifyReplicas" . -}}
{{- include "sluicegate.verifyState" . -}}
{{- include "sluicegate.verifyPod" . -}}
{{- include "sluicegate.verifyNetwork" . -}}
{{- end -}}

{{- define "sluicegate.verifyConfig" -}}
{{- if not .Values.image.repository -}}
{{- fail "image.repository is required, because no image is published yet: build one with `docker build -t NAME .`, push it to a registry that the cluster reaches, and set image.repository to NAME" -}}
{{- end -}}
{{- if not (regexMatch "^(0\\.0\\.0\\.0|\\[::\\]):[0-9]{4,5}$" .Values.admin.listen) -}}
{{- fail (printf "admin.listen is `%s`, but probes and Prometheus come from outside the pod: write 0.0.0.0:9901, or [::]:9901 in a cluster with IPv6 alone" .Values.admin.listen) -}}
{{- end -}}
{{- if hasKey .Values.config "admin" -}}
{{- fail "config.admin is written by the chart: use admin.listen and admin.existingSecret" -}}
{{- end -}}
{{- range $name := list "drain" "shutdown" -}}
{{- $span := get $.Values.config.server.timeouts $name | toString -}}
{{- if not (regexMatch "^[0-9]{1,9}(ms|s|m|h|d)$" $span) -}}
{{- fail (printf "config.server.timeouts.%s is `%s`, but the chart computes the time that a pod has to end from it: write one number with its unit, such as 10s" $name $span) -}}
{{- end -}}
{{- end -}}
{{- if eq (.Values.config.reload.watch | toString) "none" "<nil>" -}}
{{- fail "config.reload.watch is none, so a changed ConfigMap would never be applied: write a duration, such as 5s" -}}
{{- end -}}
{{- if hasKey .Values.files "gateway.yaml" -}}
{{- fail "files has a gateway.yaml, but the chart writes that file from `config`" -}}
{{- end -}}
{{- end -}}

{{- /* The listeners of `config`, those of the rate-limit service included, as a JSON list. */ -}}
{{- define "sluicegate.listeners" -}}
{{- $values := list (get .Values.config "listen" | default 8080) -}}
{{- with get .Values.config "service" -}}
{{- if kindIs "map" . -}}
{{- $values = append $values (get . "listen") | concat (list (get . "resp")) -}}
{{- end -}}
{{- end -}}
{{- $entries := list -}}
{{- range $values -}}
{{- $entries = kindIs "slice" . | ternary . (list .) | concat $entries -}}
{{- end -}}
{{- toJson $entries -}}
{{- end -}}

{{- /* The ports that others than the pod itself reach, each in brackets. */ -}}
{{- define "sluicegate.listened" -}}
{{- range include "sluicegate.listeners" . | fromJsonArray -}}
{{- $address := . | toString -}}
{{- if kindIs "map" . -}}
{{- $address = get . "address" | toString -}}
{{- end -}}
{{- if not (regexMatch "^(127\\.|localhost:|\\[::1\\]|unix:|systemd:)" $address) -}}
{{- printf "[%s]" (regexFind "[0-9]+$" $address) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "sluicegate.verifyPorts" -}}
{{- $listened := include "sluicegate.listened" . -}}
{{- $names := list -}}
{{- $numbers := list -}}
{{- range $port := .Values.ports -}}
{{- $target := int $port.targetPort -}}
{{- if eq $port.name "admin" -}}
{{- fail "ports: the name `admin` belongs to the admin address" -}}
{{- end -}}
{{- if or (has $port.name $names) (has $port.port $numbers) -}}
{{- fail (printf "ports: the name `%s` or the port %d is there twice" $port.name (int $port.port)) -}}
{{- end -}}
{{- $names = append $names $port.name -}}
{{- $numbers = append $numbers $port.port -}}
{{- if lt $target 1024 -}}
{{- fail (printf "ports: the pod may not listen on %d, because it has no capabilities: let config listen on 1024 or above, and keep port: %d for the Service" $target (int $port.port)) -}}
{{- end -}}
{{- if not (contains (printf "[%d]" $target) $listened) -}}
{{- fail (printf "ports: nothing in config listens on %d for others than the pod itself, so the port `%s` would lead nowhere" $target $port.name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "sluicegate.verifyReplicas" -}}
{{- $several := or .Values.autoscaling.enabled (gt (int .Values.replicaCount) 1) -}}
{{- $store := "" -}}
{{- with .Values.config.state -}}
{{- $store = get . "store" -}}
{{- end -}}
{{- if and $several (ne $store "redis") (not .Values.allowLocalLimits) -}}
{{- fail "several replicas multiply local limits, because each counts for itself: set config.state.store to redis and config.state.redis.url, or accept it with allowLocalLimits: true" -}}
{{- end -}}
{{- if .Values.autoscaling.enabled -}}
{{- if gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas) -}}
{{- fail "autoscaling.minReplicas is above autoscaling.maxReplicas" -}}
{{- end -}}
{{- if not (dig "requests" "cpu" "" .Values.resources) -}}
{{- fail "autoscaling needs resources.requests.cpu, of which autoscaling.targetCPU is a percentage" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Files that the gateway writes. */ -}}
{{- define "sluicegate.verifyState" -}}
{{- $several := or .Values.autoscaling.enabled (gt (int .Values.replicaCount) 1) -}}
{{- $shared := and .Values.persistence.enabled (eq .Values.persistence.accessMode "ReadWriteMany") -}}
{{- if and $several .Values.persistence.enabled (not $shared) -}}
{{- fail (printf "a claim with %s serves one replica: set persistence.accessMode to ReadWriteMany, which the storage class must support, or persistence.enabled to false" .Values.persistence.accessMode) -}}
{{- end -}}
{{- if and .Values.persistence.existingClaim (not .Values.persistence.enabled) -}}
{{- fail "persistence.existingClaim is not mounted without persistence.enabled: true" -}}
{{- end -}}
{{- with (.Values.config.state | default dict).snapshot -}}
{{- if not (hasPrefix "/var/lib/sluicegate/" .) -}}
{{- fail (printf "config.state.snapshot is `%s`, but the pod can write below /var/lib/sluicegate alone" .) -}}
{{- end -}}
{{- if and $several $.Values.persistence.enabled -}}
{{- fail "config.state.snapshot is one file on the claim, which several replicas would overwrite: set config.state.snapshot to null, or persistence.enabled to false" -}}
{{- end -}}
{{- end -}}
{{- range $storage := include "sluicegate.acmeStorages" . | fromJsonArray -}}
{{- if not (hasPrefix "/var/lib/sluicegate/" $storage) -}}
{{- fail (printf "the storage of acme is `%s`, but the pod can write below /var/lib/sluicegate alone" $storage) -}}
{{- end -}}
{{- if not $.Values.persistence.enabled -}}
{{- fail "acme needs persistence.enabled: without a claim each new pod orders a new certificate, which public authorities refuse after a few" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* The folders of ACME, as a JSON list. */ -}}
{{- define "sluicegate.acmeStorages" -}}
{{- $storages := list -}}
{{- range include "sluicegate.listeners" . | fromJsonArray -}}
{{- $tls := kindIs "map" . | ternary . dict | dig "tls" list -}}
{{- range kindIs "slice" $tls | ternary $tls (list $tls) -}}
{{- if and (kindIs "map" .) (kindIs "map" (get . "acme")) -}}
{{- $storages = append $storages (get .acme "storage" | toString) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $storages -}}
{{- end -}}

{{- define "sluicegate.verifyPod" -}}
{{- range .Values.env -}}
{{- if has .name (list "ADMIN_TOKEN" "METRICS_TOKEN") -}}
{{- fail (printf "env: %s is set by the chart: put it into a Secret and name that in admin.existingSecret" .name) -}}
{{- end -}}
{{- end -}}
{{- range .Values.volumes -}}
{{- if has .name (list "config" "state") -}}
{{- fail (printf "volumes: the name `%s` belongs to the chart" .name) -}}
{{- end -}}
{{- end -}}
{{- range .Values.volumeMounts -}}
{{- if or (hasKey . "subPath") (hasKey . "subPathExpr") -}}
{{- fail (printf "volumeMounts: %s has a subPath, whose file Kubernetes never updates: mount the whole volume" .name) -}}
{{- end -}}
{{- if or (hasPrefix "/etc/sluicegate/" (printf "%s/" .mountPath)) (hasPrefix "/var/lib/sluicegate/" (printf "%s/" .mountPath)) -}}
{{- fail (printf "volumeMounts: %s is at %s, which belongs to the chart: mount it elsewhere, e.g. at /etc/sluicegate-%s" .name .mountPath .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "sluicegate.verifyNetwork" -}}
{{- with .Values.networkPolicy -}}
{{- if and (not .enabled) (concat .clients .prometheus .upstreams .redis) -}}
{{- fail "networkPolicy lists peers, but keeps nobody out without networkPolicy.enabled: true" -}}
{{- end -}}
{{- if and .enabled $.Values.serviceMonitor.enabled (not .prometheus) -}}
{{- fail "networkPolicy.prometheus is empty, so Prometheus could not read the metrics: name its namespace or its pods" -}}
{{- end -}}
{{- if and .enabled .upstreams (not .redis) (($.Values.config.state | default dict).redis) -}}
{{- fail "networkPolicy.upstreams closes all other ways out, and networkPolicy.redis is empty, so Redis could not be reached: name its peers" -}}
{{- end -}}
{{- end -}}
{{- end -}}
