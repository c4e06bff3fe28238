"""As much of a Kubernetes API server as Helm asks for: it stores objects, and runs `check` where a pod would."""

import base64
import http.server
import json
import os
import pathlib
import subprocess
import tempfile
import threading
import time

import yaml

RESOURCES = {
    "v1": {
        "configmaps": "ConfigMap",
        "persistentvolumeclaims": "PersistentVolumeClaim",
        "pods": "Pod",
        "secrets": "Secret",
        "services": "Service",
    },
    "apps/v1": {"deployments": "Deployment"},
    "batch/v1": {"jobs": "Job"},
    "policy/v1": {"poddisruptionbudgets": "PodDisruptionBudget"},
}
STATUS = {"kind": "Status", "apiVersion": "v1"}


def prefix(version):
    return f"/api/{version}" if version == "v1" else f"/apis/{version}"


def discovery():
    """What the server has, by path."""
    groups = [
        {"name": version.split("/")[0], "versions": [{"groupVersion": version, "version": version.split("/")[1]}]}
        for version in RESOURCES
        if version != "v1"
    ]
    found = {
        "/version": {"major": "1", "minor": "34", "gitVersion": "v1.34.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups},
        "/openapi/v3": {"paths": {prefix(v)[1:]: {"serverRelativeURL": f"/openapi/v3{prefix(v)}"} for v in RESOURCES}},
    }
    for version, kinds in RESOURCES.items():
        verbs = ["create", "delete", "get", "list", "patch", "watch"]
        found[prefix(version)] = {
            "kind": "APIResourceList",
            "groupVersion": version,
            "resources": [
                {"name": name, "namespaced": True, "kind": kind, "verbs": verbs} for name, kind in kinds.items()
            ],
        }
        paths = dict(operation(version, name) for name in kinds)
        found[f"/openapi/v3{prefix(version)}"] = {"openapi": "3.0.0", "paths": paths}
    return found


def operation(version, name):
    """A server that validates fields itself, so that Helm does not."""
    group, _, number = version.rpartition("/")
    kind = {"group": group, "version": number, "kind": RESOURCES[version][name]}
    patch = {"parameters": [{"name": "fieldValidation", "in": "query"}], "x-kubernetes-group-version-kind": kind}
    return f"{prefix(version)}/namespaces/{{namespace}}/{name}/{{name}}", {"patch": patch}


class Cluster(http.server.ThreadingHTTPServer):
    """Objects by the path of their address."""

    def __init__(self, gateway):
        super().__init__(("127.0.0.1", 0), Requests)
        self.gateway, self.objects, self.known = gateway, {}, discovery()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, *_):
        # The client breaks watches off.
        pass

    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def find(self, kind, name):
        return next((o for o in self.objects.values() if o["kind"] == kind and o["metadata"]["name"] == name), None)

    def names(self):
        return sorted(f"{found['kind']}/{found['metadata']['name']}" for found in self.objects.values())

    def apply(self, path, found):
        found["metadata"] |= {"uid": "1", "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}
        if found["kind"] == "Job":
            done = self.run(found["spec"]["template"]["spec"])
            found["status"] = {"conditions": [{"type": "Complete" if done else "Failed", "status": "True"}]}
        if found["kind"] == "Pod":
            found["status"] = {"phase": "Succeeded" if self.run(found["spec"]) else "Failed"}
        self.objects[path] = found

    def run(self, pod):
        """The program with the arguments, the variables and the ConfigMap of a pod; true if it succeeds."""
        (container,) = pod["containers"]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        with tempfile.TemporaryDirectory() as folder:
            for name, text in self.find("ConfigMap", volumes["config"]["configMap"]["name"])["data"].items():
                pathlib.Path(folder, name).write_text(text)
            arguments = [argument.replace("/etc/sluicegate", folder) for argument in container["args"]]
            env = os.environ | {variable["name"]: self.value(variable) for variable in container["env"]}
            return subprocess.run([self.gateway, *arguments], env=env, capture_output=True).returncode == 0

    def value(self, variable):
        if "value" in variable:
            return variable["value"]
        wanted = variable["valueFrom"]["secretKeyRef"]
        return base64.b64decode(self.find("Secret", wanted["name"])["data"][wanted["key"]]).decode()


class Requests(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status, found):
        body = json.dumps(found).encode() if found else b""
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        path, _, query = self.path.partition("?")
        found = self.server.known.get(path) or self.server.objects.get(path)
        kinds = {name: (version, kind) for version, names in RESOURCES.items() for name, kind in names.items()}
        if found:
            self.answer(200, found)
        elif path.rpartition("/")[2] not in kinds:
            self.answer(404, STATUS | {"status": "Failure", "reason": "NotFound", "code": 404})
        elif "sendInitialEvents=" in query:
            self.answer(422, STATUS | {"status": "Failure", "reason": "Invalid", "code": 422})
        elif "watch=" in query:
            # Nothing changes within a second, and the client watches again.
            time.sleep(1.1)
            self.answer(200, None)
        else:
            version, kind = kinds[path.rpartition("/")[2]]
            items = [found for address, found in self.server.objects.items() if address.startswith(f"{path}/")]
            metadata = {"resourceVersion": "1"}
            self.answer(200, {"kind": f"{kind}List", "apiVersion": version, "metadata": metadata, "items": items})

    def do_PATCH(self):
        found = yaml.safe_load(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.apply(self.path.partition("?")[0], found)
        self.answer(200, found)

    def do_DELETE(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.objects.pop(self.path.partition("?")[0], None)
        self.answer(200, STATUS | {"status": "Success"})

    def log_message(self, *_):
        pass
