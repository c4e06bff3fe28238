"""Values of the Helm chart: those that render, with what they must give, and wrong ones with their sentences."""

ALWAYS = [
    "ConfigMap/edge-sluicegate",
    "ConfigMap/edge-sluicegate-check",
    "Deployment/edge-sluicegate",
    "Job/edge-sluicegate-check",
    "Pod/edge-sluicegate-test",
    "PodDisruptionBudget/edge-sluicegate",
    "Service/edge-sluicegate",
    "Service/edge-sluicegate-admin",
]
ONLY_FULL = [f"{kind}/edge-sluicegate" for kind in ["HorizontalPodAutoscaler", "NetworkPolicy", "ServiceMonitor"]]
SECRET = "Secret/edge-sluicegate-admin"
CLAIM = "PersistentVolumeClaim/edge-sluicegate"
GATEWAY = {
    "app.kubernetes.io/name": "sluicegate",
    "app.kubernetes.io/instance": "edge",
    "app.kubernetes.io/component": "gateway",
}

FULL = """
image: { tag: "1", pullPolicy: Always }
imagePullSecrets: [{ name: registry-credentials }]
config:
  listen: [8080, { address: ":8443", tls: { cert: /etc/sluicegate-tls/tls.crt, key: /etc/sluicegate-tls/tls.key } }]
  server: { trusted_proxies: [10.0.0.0/8], max_connections: 1000000, timeouts: { drain: 1500ms, shutdown: 2m } }
  account: { from: header:X-Account-Id, tier: { file: tiers.csv } }
  limits: { per-ip: { key: ip, rate: 10/s } }
  upstreams: { app: ["app.shop.svc:9000"] }
  locations: [{ path: /, upstream: app, limits: per-ip }]
  on_reject: { body: { template: "{{ .Values }} ${retry_after}" } }
  service: { listen: 9902, resp: "0.0.0.0:6380", token: "${SERVICE_TOKEN}" }
  state: { store: redis, redis: { url: "redis://:${REDIS_PASSWORD}@redis.shop.svc:6379" } }
files: { tiers.csv: "acme,gold\\n" }
ports:
  - { name: http, port: 80, targetPort: 8080 }
  - { name: https, port: 443, targetPort: 8443 }
  - { name: limits, port: 9902, targetPort: 9902 }
  - { name: resp, port: 6380, targetPort: 6380 }
service: { type: LoadBalancer, annotations: { example.test/balancer: internal } }
autoscaling: { enabled: true, minReplicas: 3, maxReplicas: 9, targetCPU: 60 }
admin: { existingSecret: tokens }
serviceMonitor: { enabled: true, labels: { release: prometheus }, interval: 15s }
networkPolicy:
  enabled: true
  clients: [{ ipBlock: { cidr: 192.0.2.0/24 } }]
  prometheus: [{ namespaceSelector: { matchLabels: { kubernetes.io/metadata.name: monitoring } } }]
  upstreams: [{ podSelector: { matchLabels: { app: shop } } }]
  redis: [{ podSelector: { matchLabels: { app: redis } } }]
persistence: { enabled: true, accessMode: ReadWriteMany, storageClass: shared, size: 2Gi }
env:
  - { name: REDIS_PASSWORD, valueFrom: { secretKeyRef: { name: redis, key: password } } }
  - { name: SERVICE_TOKEN, valueFrom: { secretKeyRef: { name: tokens, key: service } } }
volumes: [{ name: tls, secret: { secretName: shop-tls } }]
volumeMounts: [{ name: tls, mountPath: /etc/sluicegate-tls, readOnly: true }]
podAnnotations: { example.test/team: edge }
nodeSelector: { kubernetes.io/os: linux }
tolerations: [{ key: edge, operator: Exists }]
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms: [{ matchExpressions: [{ key: edge, operator: Exists }] }]
"""

CONTAINER = "spec.template.spec.containers.0."
ROLLING = {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": "25%"}}

FULL_EXPECTED = {
    # The autoscaler decides, so an upgrade must not.
    ("Deployment", "spec.replicas"): None,
    ("Deployment", "spec.strategy"): ROLLING,
    ("Deployment", CONTAINER + "image"): "registry.test/sluicegate:1",
    ("Deployment", "spec.template.spec.terminationGracePeriodSeconds"): 127,
    ("Deployment", CONTAINER + "env.0.valueFrom.secretKeyRef.name"): "tokens",
    ("Deployment", "spec.template.spec.volumes.1.persistentVolumeClaim.claimName"): "edge-sluicegate",
    ("HorizontalPodAutoscaler", "spec"): {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "edge-sluicegate"},
        "minReplicas": 3,
        "maxReplicas": 9,
        "metrics": [{
            "type": "Resource",
            "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 60}},
        }],
    },
    ("Service", "spec.type"): "LoadBalancer",
    ("Service", "spec.externalTrafficPolicy"): "Local",
    ("Service/edge-sluicegate-admin", "spec.clusterIP"): "None",
    ("ServiceMonitor", "metadata.labels"): {
        "helm.sh/chart": "sluicegate-0.1.0",
        "app.kubernetes.io/name": "sluicegate",
        "app.kubernetes.io/instance": "edge",
        "app.kubernetes.io/version": "0.1.0",
        "app.kubernetes.io/managed-by": "Helm",
        "release": "prometheus",
    },
    ("ServiceMonitor", "spec"): {
        "jobLabel": "app.kubernetes.io/name",
        "selector": {"matchLabels": {**GATEWAY, "app.kubernetes.io/component": "admin"}},
        "endpoints": [{
            "port": "admin",
            "path": "/metrics",
            "interval": "15s",
            "authorization": {"type": "Bearer", "credentials": {"name": "tokens", "key": "metrics-token"}},
        }],
    },
    ("NetworkPolicy", "spec"): {
        "podSelector": {"matchLabels": GATEWAY},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [
            {
                "ports": [{"port": "http"}, {"port": "https"}, {"port": "limits"}, {"port": "resp"}],
                "from": [{"ipBlock": {"cidr": "192.0.2.0/24"}}],
            },
            {
                "ports": [{"port": "admin"}],
                "from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
            },
        ],
        "egress": [
            {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]},
            {"to": [{"podSelector": {"matchLabels": {"app": app}}} for app in ["shop", "redis"]]},
        ],
    },
    ("PersistentVolumeClaim", "spec"): {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "shared",
        "resources": {"requests": {"storage": "2Gi"}},
    },
}

# Name, values, objects, and of each object (KIND or KIND/NAME) what stands at a path.
RENDERED = [
    ("default", "", [*ALWAYS, SECRET], {
        ("Deployment", "spec.replicas"): 1,
        ("Deployment", "spec.strategy"): ROLLING,
        ("Deployment", CONTAINER + "image"): "registry.test/sluicegate:0.1.0",
        ("Deployment", CONTAINER + "args"): ["run", "-c", "/etc/sluicegate/gateway.yaml"],
        ("Deployment", CONTAINER + "resources.requests"): {"cpu": "250m", "memory": "256Mi"},
        ("Deployment", CONTAINER + "resources.limits"): {"memory": "1Gi"},
        ("Deployment", "spec.template.spec.terminationGracePeriodSeconds"): 45,
        ("Deployment", "spec.template.spec.volumes.1.emptyDir"): {"sizeLimit": "1Gi"},
        # One replica never holds up the drain of a node.
        ("PodDisruptionBudget", "spec.maxUnavailable"): 1,
        ("PodDisruptionBudget", "spec.minAvailable"): None,
        ("Service", "spec.type"): "ClusterIP",
        ("Service", "spec.ports"): [{"name": "http", "port": 80, "targetPort": "http"}],
    }),
    ("full", FULL, [*ALWAYS, *ONLY_FULL, CLAIM], FULL_EXPECTED),
    ("local limits of three replicas", "{ replicaCount: 3, allowLocalLimits: true }", [*ALWAYS, SECRET], {
        ("Deployment", "spec.replicas"): 3,
    }),
    ("a snapshot on a claim", """
config: { state: { snapshot: /var/lib/sluicegate/counters } }
persistence: { enabled: true }
""", [*ALWAYS, SECRET, CLAIM], {
        # Two processes would write one file.
        ("Deployment", "spec.strategy"): {"type": "Recreate"},
        ("PersistentVolumeClaim", "spec.accessModes"): ["ReadWriteOnce"],
    }),
    ("a claim for one node", "persistence: { enabled: true }", [*ALWAYS, SECRET, CLAIM], {
        ("Deployment", "spec.strategy"): {"type": "Recreate"},
    }),
    ("a snapshot on a claim for all nodes", """
config: { state: { snapshot: /var/lib/sluicegate/counters } }
persistence: { enabled: true, accessMode: ReadWriteMany }
""", [*ALWAYS, SECRET, CLAIM], {
        ("Deployment", "spec.strategy"): {"type": "Recreate"},
    }),
    ("a claim of your own, behind an ingress", """
config: { server: { trusted_proxies: [10.0.0.0/8] } }
persistence: { enabled: true, existingClaim: mine, accessMode: ReadWriteMany }
""", [*ALWAYS, SECRET], {
        ("Deployment", "spec.strategy"): ROLLING,
        ("Deployment", "spec.template.spec.volumes.1.persistentVolumeClaim.claimName"): "mine",
    }),
    ("a policy without a list of upstreams", """
image: { digest: "sha256:0000000000000000000000000000000000000000000000000000000000000000" }
networkPolicy: { enabled: true }
config: { state: { store: redis, redis: { url: "redis://redis:6379" } } }
user: null
""", [*ALWAYS, SECRET, "NetworkPolicy/edge-sluicegate"], {
        ("NetworkPolicy", "spec.ingress"): [{"ports": [{"port": "http"}]}],
        ("NetworkPolicy", "spec.egress"): [{}],
        ("Deployment", CONTAINER + "image"): "registry.test/sluicegate@sha256:" + "0" * 64,
    }),
    ("certificates by acme", """
config:
  listen:
    - 8080
    - { address: ":8443", tls: [{ acme: { domains: [example.com], storage: /var/lib/sluicegate/acme } }] }
ports: [{ name: http, port: 80, targetPort: 8080 }, { name: https, port: 443, targetPort: 8443 }]
persistence: { enabled: true }
""", [*ALWAYS, SECRET, CLAIM], {}),
]

PORT = "{ name: http, port: 80, targetPort: 8080 }"
REDIS = "state: { store: redis, redis: { url: 'redis://redis:6379' } }"
ACME = "listen: [8080, { address: 8443, tls: { acme: { domains: [example.com], storage: %s } } }]"

# Values, and the sentence that refuses them.
WRONG = [
    ("image: { repository: '' }", "image.repository is required, because no image is published yet"),
    ("image: { digest: latest }", "at '/image/digest'"),
    ("image: { repo: x }", "additional properties 'repo' not allowed"),
    ("replicas: 3", "additional properties 'replicas' not allowed"),
    ("config: text", "at '/config': got string, want object"),
    ("config: { admin: none }", "config.admin is written by the chart"),
    ("config: { server: { timeouts: { drain: 10 } } }", "config.server.timeouts.drain is `10`, but the chart computes"),
    ("config: { server: { timeouts: { drain: '${DRAIN}' } } }", "config.server.timeouts.drain is `${DRAIN}`"),
    ("config: { server: { timeouts: { shutdown: 1m30s } } }", "config.server.timeouts.shutdown is `1m30s`"),
    (
        "config: { server: { timeouts: { shutdown: null } } }",
        "at '/config/server/timeouts': missing property 'shutdown'",
    ),
    ("config: { reload: { watch: none } }", "config.reload.watch is none"),
    ("config: { reload: { watch: null } }", "config.reload.watch is none"),
    ("files: { gateway.yaml: x }", "the chart writes that file from `config`"),
    ("files: { 'a/b': x }", "'a/b' does not match pattern"),
    ("ports: []", "at '/ports': minItems: got 0, want 1"),
    ("ports: [{ name: admin, port: 80, targetPort: 8080 }]", "the name `admin` belongs to the admin address"),
    ("ports: [%s, { name: more, port: 80, targetPort: 8080 }]" % PORT, "or the port 80 is there twice"),
    ("ports: [%s, { name: http, port: 81, targetPort: 8080 }]" % PORT, "the name `http` or"),
    ("{ config: { listen: 80 }, ports: [{ name: http, port: 80, targetPort: 80 }] }", "the pod may not listen on 80"),
    ("ports: [{ name: http, port: 80, targetPort: 9901 }]", "nothing in config listens on 9901"),
    ("config: { listen: 127.0.0.1:8080 }", "nothing in config listens on 8080"),
    ("config: { listen: [{ address: '[::1]:8080' }] }", "nothing in config listens on 8080"),
    ("config: { listen: 18080 }", "nothing in config listens on 8080"),
    ("service: { type: ExternalName }", "at '/service/type'"),
    ("replicaCount: 0", "at '/replicaCount': minimum: got 0, want 1"),
    ("replicaCount: 2", "several replicas multiply local limits"),
    ("{ replicaCount: 2, config: { state: { store: local } } }", "several replicas multiply local limits"),
    ("autoscaling: { enabled: true }", "several replicas multiply local limits"),
    ("autoscaling: { enabled: true, minReplicas: 1 }", "several replicas multiply local limits"),
    ("{ autoscaling: { enabled: true, minReplicas: 7 }, allowLocalLimits: true }", "minReplicas is above"),
    (
        "{ autoscaling: { enabled: true }, allowLocalLimits: true, resources: { requests: { cpu: null } } }",
        "needs resources.requests.cpu",
    ),
    (
        "{ autoscaling: { enabled: true }, allowLocalLimits: true, resources: { requests: null } }",
        "needs resources.requests.cpu",
    ),
    ("autoscaling: { targetCPU: '70' }", "at '/autoscaling/targetCPU': got string, want integer"),
    (
        "admin: { listen: 127.0.0.1:9901 }",
        "admin.listen is `127.0.0.1:9901`, but probes and Prometheus come from outside the pod",
    ),
    ("admin: { token: abc }", "additional properties 'token' not allowed"),
    (
        "{ replicaCount: 2, persistence: { enabled: true }, config: { %s } }" % REDIS,
        "a claim with ReadWriteOnce serves one replica",
    ),
    (
        "config: { state: { snapshot: ./counters } }",
        "config.state.snapshot is `./counters`, but the pod can write below",
    ),
    ("{ replicaCount: 2, allowLocalLimits: true, persistence: { enabled: true, accessMode: ReadWriteMany }, "
     "config: { state: { snapshot: /var/lib/sluicegate/counters } } }", "which several replicas would overwrite"),
    ("{ persistence: { enabled: true }, config: { %s } }" % ACME % "acme", "the storage of acme is `acme`"),
    ("config: { %s }" % ACME % "/var/lib/sluicegate/acme", "acme needs persistence.enabled"),
    ("persistence: { existingClaim: mine }", "not mounted without persistence.enabled"),
    ("networkPolicy: { clients: [{ podSelector: {} }] }", "keeps nobody out without networkPolicy.enabled"),
    ("persistence: { accessMode: ReadOnlyMany }", "at '/persistence/accessMode'"),
    ("podDisruptionBudget: { maxUnavailable: 0 }", "at '/podDisruptionBudget/maxUnavailable': minimum: got 0, want 1"),
    ("user: 0", "at '/user': minimum: got 0, want 1"),
    ("env: [{ name: ADMIN_TOKEN, value: x }]", "env: ADMIN_TOKEN is set by the chart"),
    ("volumes: [{ name: state, emptyDir: {} }]", "volumes: the name `state` belongs to the chart"),
    ("volumeMounts: [{ name: tls, mountPath: /tls, subPath: a.pem }]", "volumeMounts: tls has a subPath"),
    ("volumeMounts: [{ name: tls, mountPath: /etc/sluicegate/tls }]", "volumeMounts: tls is at /etc/sluicegate/tls"),
    ("volumeMounts: [{ name: tls, mountPath: /var/lib/sluicegate }]", "volumeMounts: tls is at /var/lib/sluicegate"),
    ("{ serviceMonitor: { enabled: true }, networkPolicy: { enabled: true } }", "networkPolicy.prometheus is empty"),
    (
        "{ networkPolicy: { enabled: true, upstreams: [{ podSelector: {} }] }, config: { %s } }" % REDIS,
        "networkPolicy.redis is empty",
    ),
]
