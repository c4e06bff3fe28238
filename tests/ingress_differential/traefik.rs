//! A real Traefik with its provider for objects of ingress-nginx, before a stub of the Kubernetes API.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::objects::Object;
use crate::support::Client;
use crate::support::{Gate, Reply, Scratch, Upstream, eventually, free_addr, get};

pub struct Traefik {
    child: Child,
    addr: SocketAddr,
    scratch: Scratch,
    _api: Upstream,
}

/// A host that only this test asks, to learn that the objects are in force.
const READY: &str = "ready.test";

impl Traefik {
    /// Serves `objects`; `services` are names with the ports of loopback on which they listen.
    pub fn start(program: &Path, objects: &[Object], services: &[(&'static str, u16)]) -> Traefik {
        let api = start_api(objects, services);
        let (scratch, addr) = (Scratch::new(), free_addr());
        let errors = std::fs::File::create(scratch.path().join("errors")).expect("a file for its errors");
        let provider = |field: &str| format!("--providers.kubernetesingressnginx{field}");
        let mut command = Command::new(program);
        command.current_dir(scratch.path()).env_remove("KUBERNETES_SERVICE_HOST").env_remove("KUBECONFIG");
        command.args([
            format!("--entrypoints.web.address={addr}"),
            "--global.checknewversion=false".to_owned(),
            "--global.sendanonymoususage=false".to_owned(),
            provider("=true"),
            provider(&format!(".endpoint={}", api.url())),
            provider(".token=none"),
            provider(".watchingresswithoutclass=true"),
        ]);
        let output = errors.try_clone().expect("a file for its output");
        let child =
            command.stdin(Stdio::null()).stdout(output).stderr(errors).spawn().expect("traefik starts");
        let traefik = Traefik { child, addr, scratch, _api: api };
        eventually(&format!("traefik on {addr}"), || {
            TcpStream::connect_timeout(&addr, Duration::from_secs(1)).is_ok()
        });
        eventually("the objects in traefik", || {
            let ask = get("/").host(READY).header("Connection", "close");
            Client::connect(addr).ask(&ask).status == 200
        });
        traefik
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for Traefik {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let errors = std::fs::read_to_string(self.scratch.path().join("errors"));
            eprintln!("--- output of traefik\n{}---", errors.unwrap_or_default());
        }
    }
}

/// The API as far as the provider reads it: lists, and watches that begin with all objects and a bookmark.
fn start_api(objects: &[Object], services: &[(&'static str, u16)]) -> Upstream {
    let first = services.first().map_or("", |(name, _)| *name);
    let mut ingresses: Vec<Value> = objects.iter().map(Object::json).collect();
    ingresses.push(ready_object(first));
    let kinds = [
        ("ingresses", "networking.k8s.io/v1", "Ingress", ingresses),
        ("services", "v1", "Service", services.iter().map(|(name, _)| service_object(name)).collect()),
        (
            "endpointslices",
            "discovery.k8s.io/v1",
            "EndpointSlice",
            services.iter().map(slice_object).collect(),
        ),
        ("secrets", "v1", "Secret", Vec::new()),
        ("configmaps", "v1", "ConfigMap", Vec::new()),
        ("ingressclasses", "networking.k8s.io/v1", "IngressClass", Vec::new()),
    ];
    Upstream::new(move |seen| {
        let (path, query) = seen.target.split_once('?').unwrap_or((&seen.target, ""));
        let name = path.rsplit('/').next().unwrap_or_default();
        let Some((_, version, kind, items)) = kinds.iter().find(|(known, ..)| *known == name) else {
            return Reply::with(404, &[], "");
        };
        if query.split('&').any(|part| part == "watch=true") {
            return watch(version, kind, items);
        }
        let list = json!({
            "apiVersion": version, "kind": format!("{kind}List"), "metadata": { "resourceVersion": "1" }, "items": items,
        });
        Reply::with(200, &[("Content-Type", "application/json")], &list.to_string())
    })
}

/// Stays open, as nothing changes.
fn watch(version: &str, kind: &str, items: &[Value]) -> Reply {
    let mut events: Vec<Value> =
        items.iter().map(|item| json!({ "type": "ADDED", "object": item })).collect();
    let ended = json!({ "k8s.io/initial-events-end": "true" });
    let metadata = json!({ "resourceVersion": "1", "annotations": ended });
    let object = json!({ "apiVersion": version, "kind": kind, "metadata": metadata });
    events.push(json!({ "type": "BOOKMARK", "object": object }));
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    let chunk = |event: &Value| {
        let line = format!("{event}\n");
        format!("{:x}\r\n{line}\r\n", line.len())
    };
    let sent: String = events.iter().map(chunk).collect();
    Reply::raw(head.to_owned() + &sent).until(&Gate::default()).close()
}

fn ready_object(service: &str) -> Value {
    let backend = json!({ "service": { "name": service, "port": { "number": 80 } } });
    let path = json!({ "path": "/", "pathType": "Prefix", "backend": backend });
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": metadata("ready"),
        "spec": { "rules": [{ "host": READY, "http": { "paths": [path] } }] },
    })
}

fn metadata(name: &str) -> Value {
    json!({ "name": name, "namespace": "default", "uid": name, "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z" })
}

fn service_object(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": metadata(name),
        "spec": { "clusterIP": "10.0.0.1", "ports": [{ "name": "http", "port": 80, "targetPort": 80 }] },
    })
}

fn slice_object((name, port): &(&'static str, u16)) -> Value {
    let mut metadata = metadata(name);
    metadata["labels"] = json!({ "kubernetes.io/service-name": name });
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata, "addressType": "IPv4",
        "ports": [{ "name": "http", "port": port, "protocol": "TCP" }],
        "endpoints": [{ "addresses": ["127.0.0.1"], "conditions": { "ready": true, "serving": true } }],
    })
}
