#!/bin/sh
# Starts a gateway and lets schemathesis try its admin API by /openapi.json, with and without tokens. Loopback only.
set -eu
gateway=$1
schemathesis=$2
folder=$(mktemp -d)
pid=
trap '[ -z "$pid" ] || kill "$pid" 2>/dev/null; rm -rf "$folder"' EXIT

# Which listeners exist and what a valid URL is no schema can say.
cat >"$folder/schemathesis.toml" <<TOML
[[operations]]
include-operation-id = "explain"
checks.positive_data_acceptance.enabled = false
TOML

try() {
    tokens=$1
    shift
    cat >"$folder/gateway.yaml" <<YAML
listen: 127.0.0.1:0
admin: { listen: 127.0.0.1:0$tokens }
log: { format: json }
bans: { after: 100/1m }
limits: { per-ip: { rate: 10/s }, slots: { algorithm: concurrency, max_concurrent: 5 } }
upstreams: { app: [127.0.0.1:1, 127.0.0.1:2] }
locations: [{ path: /, respond: { body: ok }, limits: [per-ip, slots] }, { path: /app, upstream: app }]
YAML
    "$gateway" run -c "$folder/gateway.yaml" >"$folder/stdout" 2>"$folder/stderr" &
    pid=$!
    address=
    for _ in $(seq 100); do
        address=$(sed -n 's|.*admin \(http://[0-9.:]*\).*|\1|p' "$folder/stderr" | head -n 1)
        [ -z "$address" ] || break
        sleep 0.1
    done
    # Streams of events do not end by themselves.
    timeout 300 "$schemathesis" --config-file "$folder/schemathesis.toml" run "$address/openapi.json" --exclude-path /events --max-examples 50 \
        --seed 1 --request-timeout 10 --workers 1 "$@"
    kill "$pid"
    wait "$pid"
    pid=
}

try ''
try ', token: s3cret' --header 'Authorization: Bearer s3cret'
