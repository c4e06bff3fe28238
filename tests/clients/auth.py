"""The verdicts of one auth service before the gateway and before Traefik: they are the same for 200 requests.

Usage: auth.py GATEWAY TRAEFIK, with the path of each program. Fails if a status, a name for the application or a field of
a refusal differs, or if the application ever sees a name that a client wrote.
"""

import http.client
import http.server
import pathlib
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time

NAMES = ["X-User", "x-user", "X_User", "X-Groups"]
WORDS = ["joe", "ann", "anon", "deny", "forbid", "login"]
FIELDS = ["Location", "WWW-Authenticate", "Set-Cookie"]


class Service(http.server.BaseHTTPRequestHandler):
    """Decides by the cookie."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        word = (self.headers.get("Cookie") or "").rpartition("=")[2]
        status = {"deny": 401, "forbid": 403, "login": 302}.get(word, 200)
        self.send_response(status)
        if status == 401:
            self.send_header("WWW-Authenticate", 'Basic realm="x"')
        if status == 302:
            self.send_header("Location", "https://login.test/")
            self.send_header("Set-Cookie", "state=1")
        if status == 200 and word != "anon":
            self.send_header("X-User", word)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


class Application(Service):
    """Answers with the names that it sees."""

    def do_GET(self):
        seen = [f"{name.lower()}={value}" for name, value in self.headers.items() if re.search("user|group", name, re.I)]
        body = ",".join(sorted(seen)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def serve(handler):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def wait_for(port):
    for _ in range(200):
        try:
            return socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
    sys.exit(f"nothing listens on {port}")


def ask(port, word, forged):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/app/?q=1", headers={"Cookie": f"who={word}", **{name: "forged" for name in forged}})
    answer = connection.getresponse()
    body = answer.read().decode()
    names = body if answer.status == 200 else ""
    return answer.status, names, [answer.getheader(name) for name in FIELDS]


def main(gateway, traefik):
    service, application = serve(Service), serve(Application)
    ours, theirs = free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        files = pathlib.Path(folder)
        (files / "gateway.yaml").write_text(
            f"listen: 127.0.0.1:{ours}\nlocations:\n  - path: /\n    upstream: http://127.0.0.1:{application}\n"
            f"    auth: {{ url: 'http://127.0.0.1:{service}/verify', copy: [X-User, X-Groups] }}\n"
        )
        (files / "dynamic.yaml").write_text(
            "http:\n  routers: { all: { rule: 'PathPrefix(`/`)', service: app, middlewares: [ask] } }\n"
            f"  services: {{ app: {{ loadBalancer: {{ servers: [{{ url: 'http://127.0.0.1:{application}' }}] }} }} }}\n"
            f"  middlewares: {{ ask: {{ forwardAuth: {{ address: 'http://127.0.0.1:{service}/verify', "
            "authResponseHeaders: [X-User, X-Groups] } } }\n"
        )
        programs = [
            [gateway, "run", "-c", str(files / "gateway.yaml")],
            [traefik, f"--entrypoints.web.address=127.0.0.1:{theirs}", f"--providers.file.filename={files / 'dynamic.yaml'}"],
        ]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
        running = [subprocess.Popen(program, **quiet) for program in programs]
        try:
            for port in (ours, theirs):
                wait_for(port)
            for _ in range(100):
                if ask(theirs, "anon", [])[0] == 200:
                    break
                time.sleep(0.1)
            choices = random.Random(7)
            for number in range(200):
                word = choices.choice(WORDS)
                # Traefik passes other spellings on, which is the hole that the gateway closes.
                forged = choices.sample(NAMES[:2] + NAMES[3:], choices.randrange(2))
                first, second = ask(ours, word, forged), ask(theirs, word, forged)
                assert first == second, (number, word, forged, first, second)
                everything = ask(ours, word, NAMES)
                assert "forged" not in everything[1], everything
        finally:
            for process in running:
                process.terminate()
                process.wait()
    print("200 requests: the gateway and Traefik decide alike")


if __name__ == "__main__":
    main(*(str(pathlib.Path(program).resolve()) for program in sys.argv[1:]))
