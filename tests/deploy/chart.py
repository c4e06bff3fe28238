"""The Helm chart: rendered by Helm's own library, validated by the schemas of Kubernetes, its gateway.yaml by `check`.

Usage: chart.py GATEWAY, with the path of the program, from the root of the repository. Fails if a rendered object, a
refusal of wrong values, the tokens of an upgrade or a reload of a changed ConfigMap is not as promised. No cluster is
needed, and none is asked.
"""

import base64
import itertools
import logging
import os
import pathlib
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import helm_python as helm
import kubernetes_validate
import yaml

from chart_values import RENDERED, WRONG
from cluster import Cluster

CHART = "deploy/helm"
# The oldest version that Chart.yaml admits, and the newest that the package knows.
VERSIONS = ["1.27", "1.37"]
TOKENS = {"ADMIN_TOKEN": "a" * 40, "METRICS_TOKEN": "m" * 40, "REDIS_PASSWORD": "secret", "SERVICE_TOKEN": "s" * 40}
BROKEN = "config: { limits: { a: { rate: often } } }"
SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


def same(what, found, expected):
    if found != expected:
        sys.exit(f"{what}: {found!r} instead of {expected!r}")


def merged(values, other):
    for name, value in other.items():
        both = isinstance(value, dict) and isinstance(values.get(name), dict)
        values[name] = merged(dict(values[name]), value) if both else value
    return values


def values_of(text):
    """Values as `-f` reads them, with an image."""
    return merged({"image": {"repository": "registry.test/sluicegate"}}, helm.values_from_yaml(text))


class Objects:
    """The rendered objects of a release."""

    def __init__(self, templates):
        self.notes = next(text for path, text in templates.items() if path.endswith("NOTES.txt"))
        texts = [text for path, text in templates.items() if not path.endswith("NOTES.txt")]
        self.all = [found for text in texts for found in yaml.safe_load_all(text) if found]

    def kinds(self):
        return sorted(f"{found['kind']}/{found['metadata']['name']}" for found in self.all)

    def find(self, kind, name="edge-sluicegate"):
        return next((f for f in self.all if f["kind"] == kind and f["metadata"]["name"] == name), None)

    def pod_specs(self):
        """Every pod: of the Deployment, of the check before an upgrade, of `helm test`."""
        deployment, job = self.find("Deployment"), self.find("Job", "edge-sluicegate-check")
        pods = [deployment["spec"]["template"], job["spec"]["template"], self.find("Pod", "edge-sluicegate-test")]
        return [pod["spec"] for pod in pods]

    def files(self):
        return self.find("ConfigMap")["data"]

    def config(self):
        return yaml.safe_load(self.files()["gateway.yaml"])


def rendered(chart, values):
    return Objects(chart.render(values, name="edge", namespace="shop"))


def validate(objects):
    for found in objects.all:
        if found["apiVersion"].startswith("monitoring.coreos.com/"):
            continue
        for version in VERSIONS:
            try:
                kubernetes_validate.validate(found, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                sys.exit(f"{found['kind']} {found['metadata']['name']} for {version}: {error.message}")


def lint(values):
    messages = helm.lint(CHART, values, strict=True)["messages"]
    # 1 is advice, such as that for an icon.
    same("lint", [message for message in messages if message["severity"] > 1], [])


def check_security(objects, values):
    for pod in objects.pod_specs():
        same("service account token", pod["automountServiceAccountToken"], False)
        same("variables of Services", pod["enableServiceLinks"], False)
        security = dict(pod["securityContext"])
        user = values.get("user", 65532)
        ids = {name: security.pop(name, None) for name in ["runAsUser", "runAsGroup", "fsGroup"]}
        same("user", ids, dict.fromkeys(ids, user))
        same("change of groups", security.pop("fsGroupChangePolicy", None), user and "OnRootMismatch")
        same("pod", security, {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}})
        (container,) = pod["containers"]
        closed = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
        same("container", container["securityContext"], closed)
        mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
        same("subPath", [mount for mount in mounts.values() if "subPath" in mount], [])
        same("configuration", mounts["/etc/sluicegate"].get("readOnly"), True)
        volumes = {volume["name"] for volume in pod["volumes"]}
        same("volumes", {mount["name"] for mount in mounts.values()} - volumes, set())


def span(text):
    number, unit = re.fullmatch(r"(\d+)(\w+)", text).groups()
    return int(number) * SECONDS[unit]


def check_end(objects):
    """A pod has the time that its gateway needs, and nothing delays TERM."""
    spec = objects.find("Deployment")["spec"]["template"]["spec"]
    timeouts = objects.config()["server"]["timeouts"]
    needed = span(timeouts["drain"]) + span(timeouts["shutdown"]) + 5
    granted = spec["terminationGracePeriodSeconds"]
    if not needed <= granted < needed + 2:
        sys.exit(f"{granted} seconds to end, {needed} needed")
    same("lifecycle", spec["containers"][0].get("lifecycle"), None)


def check_wiring(objects):
    """Labels, ports and names that objects share."""
    deployment = objects.find("Deployment")
    pod = deployment["spec"]["template"]
    labels = pod["metadata"]["labels"].items()
    chosen = deployment["spec"]["selector"]["matchLabels"]
    services = [found["spec"] for found in objects.all if found["kind"] == "Service"]
    selectors = [service["selector"] for service in services] + [chosen]
    spread = pod["spec"]["topologySpreadConstraints"]
    selectors += [constraint["labelSelector"]["matchLabels"] for constraint in spread]
    for kind, field in [("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")]:
        selectors += [found["spec"][field]["matchLabels"] for found in objects.all if found["kind"] == kind]
    wishes = [(constraint["topologyKey"], constraint["whenUnsatisfiable"]) for constraint in spread]
    names = ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
    same("spread", wishes, [(name, "ScheduleAnyway") for name in names])
    for selector in selectors:
        same("selector", selector.items() <= labels, True)
        same("selector of every object", selector, chosen)
    # The pods of checks belong to no Service.
    job, test = objects.find("Job", "edge-sluicegate-check"), objects.find("Pod", "edge-sluicegate-test")
    for other in [job["spec"]["template"], test]:
        same("checks", chosen.items() <= other["metadata"]["labels"].items(), False)
    (container,) = pod["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for service in services:
        same("target ports", {port["targetPort"] for port in service["ports"]} <= ports.keys(), True)
    for probe, path in [("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")]:
        same(probe, container[probe]["httpGet"], {"path": path, "port": "admin"})
    same("admin address", objects.config()["admin"]["listen"].endswith(f":{ports['admin']}"), True)


def check_hooks(objects):
    """`check` runs before the install and before an upgrade on the new file, and as a test on that of the pods."""
    early = objects.find("ConfigMap", "edge-sluicegate-check")
    same("checked file", early["data"], objects.files())
    job, test = objects.find("Job", "edge-sluicegate-check"), objects.find("Pod", "edge-sluicegate-test")
    for found in [early, job]:
        same("hook", found["metadata"]["annotations"]["helm.sh/hook"], "pre-install,pre-upgrade")
    same("test", test["metadata"]["annotations"]["helm.sh/hook"], "test")
    # The file is there before the Job.
    same("order", early["metadata"]["annotations"]["helm.sh/hook-weight"], "-1")
    same("tries", job["spec"]["backoffLimit"], 0)
    deployed = objects.pod_specs()[0]
    for pod, name in [(job["spec"]["template"]["spec"], "edge-sluicegate-check"), (test["spec"], "edge-sluicegate")]:
        same("arguments", pod["containers"][0]["args"], ["check", "/etc/sluicegate/gateway.yaml"])
        same("image", pod["containers"][0]["image"], deployed["containers"][0]["image"])
        volumes = {volume.pop("name"): volume for volume in pod["volumes"]}
        same("file", volumes["config"]["configMap"]["name"], name)
        same("state", list(volumes["state"]), ["emptyDir"])
        # A Secret of the chart does not exist before the install.
        by_chart = objects.find("Secret", "edge-sluicegate-admin") is not None
        early_tokens = pod is job["spec"]["template"]["spec"] and by_chart
        for variable in pod["containers"][0]["env"][:2]:
            same("token of the check", "value" in variable, early_tokens)
    env = job["spec"]["template"]["spec"]["containers"][0]["env"]
    tokens = [variable["value"] for variable in env if "value" in variable]
    same("two tokens", len(set(tokens)), len(tokens))


def write_files(objects, folder):
    """The files of the ConfigMap as a pod sees them, with folders of this machine in place of its mounts."""
    (folder / "sluicegate-tls").mkdir(exist_ok=True)
    for name in ["a.pem", "a.key.pem"]:
        shutil.copy(f"tests/keys/tls/{name}", folder / "sluicegate-tls" / {"a.pem": "tls.crt"}.get(name, "tls.key"))
    for name, text in objects.files().items():
        text = text.replace("/etc/sluicegate-tls", f"{folder}/sluicegate-tls")
        (folder / name).write_text(text.replace("/var/lib/sluicegate", f"{folder}"))
    return folder / "gateway.yaml"


def check_file(gateway, objects):
    with tempfile.TemporaryDirectory() as folder:
        file = write_files(objects, pathlib.Path(folder))
        done = subprocess.run([gateway, "check", file], env=os.environ | TOKENS, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"check refuses the rendered file:\n{done.stdout}{done.stderr}")


def check_tokens(objects):
    """The admin address has a token for operators and one for Prometheus that may only read."""
    rights = [(token["name"], token.get("allow", "all")) for token in objects.config()["admin"]["tokens"]]
    same("rights", rights, [("admin", "all"), ("metrics", "read")])
    env = {variable["name"]: variable for variable in objects.pod_specs()[0]["containers"][0]["env"]}
    for name, key in [("ADMIN_TOKEN", "admin-token"), ("METRICS_TOKEN", "metrics-token")]:
        same("key of the Secret", env[name]["valueFrom"]["secretKeyRef"]["key"], key)


def check_replicas(objects, text):
    """Outages of Redis divide limits by the least number of pods, and the notes warn of limits that multiply."""
    scaler = objects.find("HorizontalPodAutoscaler")
    least = scaler["spec"]["minReplicas"] if scaler else objects.find("Deployment")["spec"]["replicas"]
    redis = objects.config().get("state", {}).get("redis", {"nodes_at_least": least})
    same("gateways to assume", redis["nodes_at_least"], least)
    same("warning of local limits", "each limit once per pod" in objects.notes, "allowLocalLimits" in text)
    same("warning of an ingress", "trusted_proxies is empty" in objects.notes, "trusted_proxies" not in text)


def part(found, path):
    """The part of an object at a path such as spec.ports.0.name; None where there is none."""
    for step in path.split("."):
        if isinstance(found, list):
            found = found[int(step)] if int(step) < len(found) else None
        else:
            found = (found or {}).get(step)
    return found


def try_rendered(chart, gateway, known_fields):
    for name, text, kinds, expected in RENDERED:
        print(f"rendered: {name}")
        values = values_of(text)
        lint(values)
        objects = rendered(chart, values)
        validate(objects)
        same("objects", objects.kinds(), sorted(kinds))
        check_security(objects, values)
        check_end(objects)
        check_wiring(objects)
        check_hooks(objects)
        check_tokens(objects)
        check_replicas(objects, text)
        for (kind, path), value in expected.items():
            same(f"{name}: {kind} {path}", part(objects.find(*kind.split("/")), path), value)
        # A field that this program does not know yet would only tell that.
        if "acme" not in text or "acme" in known_fields:
            check_file(gateway, objects)


def try_page(chart, gateway):
    """The values on the page about Kubernetes."""
    page = pathlib.Path("docs/kubernetes.md").read_text()
    blocks = re.findall(r"^```yaml\n# values.yaml\n(.*?)^```$", page, re.M | re.S)
    same("values on the page", len(blocks) >= 3, True)
    for block in blocks:
        values = helm.values_from_yaml(block)
        lint(values)
        objects = rendered(chart, values)
        validate(objects)
        check_file(gateway, objects)
    print(f"page: {len(blocks)} blocks of values")


def try_wrong(chart):
    # The library writes each refusal to stderr as well.
    helm.enable_logging(logging.CRITICAL)
    for text, sentence in WRONG:
        try:
            rendered(chart, values_of(text))
        except helm.HelmError as error:
            if sentence not in str(error):
                sys.exit(f"{text}: refused with {error} instead of {sentence}")
        else:
            sys.exit(f"{text}: rendered, but expected: {sentence}")
    print(f"refused: {len(WRONG)} wrong values")


class Release:
    """The release `edge` in a cluster, by Helm itself."""

    def __init__(self, chart, gateway):
        self.chart, self.cluster = chart, Cluster(gateway)
        self.helm = helm.Config(
            kube_apiserver=self.cluster.url(), kubeconfig_path=os.devnull, namespace="shop", storage_driver="memory"
        )

    def change(self, action, text):
        action(self.chart, "edge", values_of(text), timeout=60)

    def refused(self, action, text):
        try:
            self.change(action, text)
        except helm.HelmReleaseError as error:
            return same("cause", "Job/shop/edge-sluicegate-check not ready" in str(error), True)
        sys.exit("a broken file was not refused")

    def state(self):
        """The template of the pods, the files, and the tokens."""
        deployment = self.cluster.find("Deployment", "edge-sluicegate")["spec"]["template"]
        return deployment, self.cluster.find("ConfigMap", "edge-sluicegate")["data"], self.secret()["data"]

    def secret(self):
        return self.cluster.find("Secret", "edge-sluicegate-admin")


def try_release(chart, gateway):
    """A broken file never rolls out, a valid one reaches the pods that run, and the tokens stay."""
    release = Release(chart, gateway)
    release.refused(release.helm.install, BROKEN)
    same("objects after a refused install", release.cluster.names(), ["Job/edge-sluicegate-check"])
    release.change(release.helm.upgrade, "")
    objects = {f"{found['kind']}/{found['metadata']['name']}" for found in rendered(chart, values_of("")).all}
    kept = sorted(name for name in objects if not name.endswith(("-check", "-test")))
    same("objects after an upgrade", release.cluster.names(), kept)
    pods, files, tokens = release.state()
    release.refused(release.helm.upgrade, BROKEN)
    same("state after a refused upgrade", release.state(), (pods, files, tokens))
    release.change(release.helm.upgrade, "config: { limits: { a: { rate: 10/s } } }")
    same("pods and tokens after an upgrade", (release.state()[0], release.state()[2]), (pods, tokens))
    same("a changed file after an upgrade", release.state()[1] == files, False)
    release.helm.test("edge", timeout=60)
    release.cluster.find("ConfigMap", "edge-sluicegate")["data"]["gateway.yaml"] = "locations: ["
    try:
        release.helm.test("edge", timeout=60)
    except helm.HelmError:
        release.helm.uninstall("edge")
    same("objects at the end", release.cluster.names(), ["Pod/edge-sluicegate-test"])
    print("release: checked before install and upgrade and by the test; pods and tokens stay")


def try_tokens(chart, gateway):
    """Tokens are random at first; a missing one is made, and the other one stays."""
    release = Release(chart, gateway)
    release.change(release.helm.install, "")
    first = release.secret()["data"]
    tokens = [base64.b64decode(token).decode() for token in first.values()]
    same("keys", sorted(first), ["admin-token", "metrics-token"])
    same("random tokens", [bool(re.fullmatch("[A-Za-z0-9]{40}", token)) for token in tokens], [True, True])
    same("different tokens", len(set(tokens)), 2)
    release.secret()["data"] = {"admin-token": first["admin-token"]}
    release.change(release.helm.upgrade, "")
    same("the token that is left", release.secret()["data"]["admin-token"], first["admin-token"])
    same("the missing token", release.secret()["data"]["metrics-token"] == first["metrics-token"], False)
    other = Release(chart, gateway)
    other.change(other.helm.install, "")
    same("tokens of another cluster", {*other.secret()["data"].values()} & {*first.values()}, set())
    print("tokens: random at first, kept by an upgrade")


def try_restart(chart):
    """New pods come with what needs a restart, and not with any other change of the file."""

    def template(text):
        return rendered(chart, values_of(text)).find("Deployment")["spec"]["template"]

    plain = template("")
    for text in ["config: { limits: { a: { rate: 1/s } } }", "config: { log: { level: debug } }", "files: { a.csv: x }",
                 "config: { locations: [{ path: /, upstream: demo }], server: { workers: null } }"]:
        same(text, template(text), plain)
    for text in ["config: { server: { workers: 3 } }", "config: { log: { format: json } }",
                 "admin: { listen: '[::]:9901' }", "admin: { listen: 0.0.0.0:9902 }"]:
        same(text, template(text) == plain, False)
    print("restart: only where a reload is not enough")


class Volume:
    """A folder that changes as kubelet changes the volume of a ConfigMap or Secret: by the link ..data."""

    def __init__(self, folder, files):
        self.folder, self.count = folder, itertools.count()
        folder.mkdir()
        self.change(files)
        for name in files:
            (folder / name).symlink_to(f"..data/{name}")

    def change(self, files):
        now = self.folder / f"..2026_01_01_00_00_00.{next(self.count)}"
        now.mkdir()
        for name, content in files.items():
            (now / name).write_bytes(content)
        data, new = self.folder / "..data", self.folder / "..data_tmp"
        before = data.resolve() if data.exists() else None
        new.symlink_to(now.name)
        new.rename(data)
        if before:
            shutil.rmtree(before)


def eventually(what, test):
    for _ in range(200):
        try:
            if test():
                return
        except OSError:
            pass
        time.sleep(0.1)
    sys.exit(f"{what}: not within 20 seconds")


def serving(folder, word):
    """The rendered file with listeners of this machine, and with an answer."""
    config = yaml.safe_load((folder / "rendered" / "gateway.yaml").read_text())
    config |= {"reload": {"watch": "200ms"}, "locations": [{"path": "/", "respond": {"status": 200, "body": word}}]}
    config["admin"]["listen"] = "127.0.0.1:0"
    config["server"]["timeouts"]["drain"] = "2s"
    tls = {"cert": f"{folder}/tls/tls.crt", "key": f"{folder}/tls/tls.key"}
    # Two addresses, since a reload tells the listeners of the port 0 apart by their addresses alone.
    config["listen"] = [{"address": "127.0.0.1:0"}, {"address": "127.0.0.2:0", "tls": tls}]
    return {"gateway.yaml": yaml.safe_dump(config).encode()}


def key_pair(name):
    files = {"tls.crt": f"{name}.pem", "tls.key": f"{name}.key.pem"}
    return {file: pathlib.Path("tests/keys/tls", source).read_bytes() for file, source in files.items()}


def addresses(log):
    """The addresses of the admin API, of the plain listener and of the one with TLS, once all are logged."""
    words = ["admin http", "listening http", "listening https"]
    found = [re.search(word + r"://([\d.:]+)", log.read_text()) for word in words]
    return all(found) and [address[1] for address in found]


def try_swap(chart, gateway):
    """A changed ConfigMap and a changed Secret are applied, a broken ConfigMap is not, and the process stays."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "rendered").mkdir()
        write_files(rendered(chart, values_of("")), folder / "rendered")
        secret = Volume(folder / "tls", key_pair("a"))
        config = Volume(folder / "config", serving(folder, "one"))
        log = folder / "log"
        command = [gateway, "run", "-c", folder / "config" / "gateway.yaml"]
        with log.open("w") as output:
            process = subprocess.Popen(command, env=os.environ | TOKENS, stdout=output, stderr=subprocess.STDOUT)
        try:
            eventually("start", lambda: addresses(log))
            swap(folder, config, secret, *addresses(log))
            drain(process, *addresses(log)[:2])
        finally:
            process.kill()
            process.wait()
    print("reload: ConfigMap and Secret by ..data, without a restart; TERM: a drain without a preStop")


def get(address, path):
    headers = {"Authorization": f"Bearer {TOKENS['METRICS_TOKEN']}"}
    request = urllib.request.Request(f"http://{address}{path}", headers=headers)
    with urllib.request.urlopen(request, timeout=5) as answer:
        return answer.read().decode().strip()


def swap(folder, config, secret, admin, plain, encrypted):
    def certificate():
        host, port = encrypted.split(":")
        return ssl.get_server_certificate((host, int(port)), timeout=5)

    same("first answer", get(plain, "/"), "one")
    config.change(serving(folder, "two"))
    eventually("changed ConfigMap", lambda: get(plain, "/") == "two")
    first = certificate()
    secret.change(key_pair("b"))
    eventually("changed Secret", lambda: certificate() != first)
    config.change({"gateway.yaml": b"locations: [\n"})
    eventually("refused ConfigMap", lambda: 'sluicegate_reloads_total{result="failed"} 1' in get(admin, "/metrics"))
    same("answer after a refused ConfigMap", get(plain, "/"), "two")
    config.change(serving(folder, "three"))
    eventually("ConfigMap after a refused one", lambda: get(plain, "/") == "three")
    same("health", [get(admin, "/healthz"), get(admin, "/readyz")], ["ok", "ready"])


def drain(process, admin, plain):
    """A pod that ends is not ready any more, and serves until `drain` is over."""
    same("process", process.poll(), None)
    process.terminate()

    def is_unready():
        try:
            get(admin, "/readyz")
        except urllib.error.HTTPError as answer:
            return answer.code == 503

    eventually("/readyz after TERM", is_unready)
    same("answer after TERM", get(plain, "/"), "three")
    same("exit code", process.wait(30), 0)


def try_versions(chart):
    """Chart, program and image say the same."""
    version = re.search(r'^version\s*=\s*"(.*)"', pathlib.Path("Cargo.toml").read_text(), re.M)[1]
    same("versions", [chart.version, chart.metadata["appVersion"]], [version, version])
    user = re.search(r"^USER (\d+):(\d+)\n.*", pathlib.Path("Dockerfile").read_text().partition("AS gateway")[2], re.M)
    same("user of the image", user.groups(), (str(chart.values["user"]),) * 2)
    same("default repository", chart.values["image"]["repository"], "")
    job = 'up{job="%s"}' % chart.name
    same("job of the alerts", job in pathlib.Path("deploy/alerts.yml").read_text(), True)


def main():
    gateway = os.path.abspath(sys.argv[1])
    schema = pathlib.Path("gateway.schema.json").read_text()
    with helm.Chart.load(CHART) as chart:
        try_versions(chart)
        try_rendered(chart, gateway, schema)
        try_page(chart, gateway)
        try_wrong(chart)
        try_restart(chart)
        try_release(chart, gateway)
        try_tokens(chart, gateway)
        try_swap(chart, gateway)


if __name__ == "__main__":
    main()
