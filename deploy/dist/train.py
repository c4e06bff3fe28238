#!/usr/bin/env python3
"""Serves traffic with an instrumented program, so that it leaves counters: train.py PROGRAM FOLDER.

Everything stays on loopback and ends within three minutes. Three gateways run one after the other: the bare path, which
the benchmarks measure, then every feature of a request, then limits in Redis. Each must end on TERM and leave its file.
"""

import asyncio
import base64
import contextlib
import hashlib
import http.client
import json
import multiprocessing
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

SECONDS_MAX = 180
KEYS = Path("tests/keys")
WEBSOCKET_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
LARGE = 1 << 20
USAGE = {"model": "m", "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}}


class Backend(asyncio.Protocol):
    """An HTTP/1 server whose answer depends on the last word of the path."""

    def connection_made(self, transport):
        self.transport, self.buffer, self.tunnel = transport, b"", False

    def data_received(self, data):
        if self.tunnel:
            self.transport.write(data)
            return
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end].lower()
            body = end + 4
            if b"transfer-encoding: chunked" in head:
                last = self.buffer.find(b"0\r\n\r\n", body)
                if last < 0:
                    return
                after = last + 5
            else:
                length = field(head, b"content-length")
                after = body + int(length or 0)
                if len(self.buffer) < after:
                    return
            self.answer(self.buffer[:end], head)
            self.buffer = self.buffer[after:]

    def answer(self, head, lower):
        path = head.split(b" ", 2)[1]
        if key := field(lower, b"sec-websocket-key"):
            key = field(head, b"Sec-WebSocket-Key") or field(head, b"sec-websocket-key") or key
            accept = base64.b64encode(hashlib.sha1(key + WEBSOCKET_GUID).digest())
            upgrade = b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " + accept
            self.transport.write(b"HTTP/1.1 101 Switching Protocols\r\n" + upgrade + b"\r\n\r\n")
            self.tunnel = True
        elif path.endswith(b"/large"):
            self.send(b"application/octet-stream", bytes(LARGE))
        elif path.endswith(b"/llm"):
            self.send(b"application/json", json.dumps(USAGE).encode())
        elif path.endswith(b"/stream"):
            events = [b"data: {\"choices\":[{\"delta\":{\"content\":\"word\"}}]}\n\n"] * 20
            events += [b"data: " + json.dumps(USAGE).encode() + b"\n\n", b"data: [DONE]\n\n"]
            head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
            chunks = b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in events)
            self.transport.write(head + chunks + b"0\r\n\r\n")
        else:
            self.send(b"text/plain", b"x" * 128)

    def send(self, kind, body):
        fields = b"Server: backend\r\nX-Served-By: one\r\nCache-Control: no-store\r\nContent-Type: " + kind
        self.transport.write(b"HTTP/1.1 200 OK\r\n%s\r\nContent-Length: %d\r\n\r\n%s" % (fields, len(body), body))


def field(head, name):
    """The value of a header field."""
    _, found, rest = head.partition(b"\r\n" + name + b":")
    return rest.split(b"\r\n", 1)[0].strip() if found else None


def serve(listener):
    """Runs the backend on a socket that listens already."""

    async def forever():
        server = await asyncio.get_running_loop().create_server(Backend, sock=listener)
        await server.serve_forever()

    asyncio.run(forever())


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def wait_port(port, process):
    end = time.monotonic() + 30
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    sys.exit(f"train.py: nothing listens on port {port}: {process.args}")


class Gateway:
    """One run of the program."""

    def __init__(self, program, folder, name, backend, rest):
        self.name, self.folder, self.plain, self.tls = name, folder, free_port(), free_port()
        file = folder / f"{name}.yaml"
        file.write_text(
            f"""listen:
  - 127.0.0.1:{self.plain}
  - address: 127.0.0.1:{self.tls}
    tls: {{ cert: {(KEYS / "tls/a.pem").resolve()}, key: {(KEYS / "tls/a.key.pem").resolve()} }}
admin: none
log: {{ level: warn }}
upstreams:
  app: {{ servers: ["127.0.0.1:{backend}"], keepalive: 64 }}
{rest}"""
        )
        self.counters = folder / f"{name}.profraw"
        self.counters.unlink(missing_ok=True)
        log = (folder / f"{name}.log").open("wb")
        environment = os.environ | {"LLVM_PROFILE_FILE": str(self.counters)}
        self.process = subprocess.Popen(
            [program, "run", "-c", file], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
        )

    def __enter__(self):
        try:
            wait_port(self.plain, self.process)
        except BaseException:
            self.process.kill()
            raise
        return self

    def __exit__(self, kind, *_):
        try:
            self.process.terminate()
            code = self.process.wait(30)
        finally:
            self.process.kill()
        if kind is None and (code != 0 or not self.counters.is_file() or not self.counters.stat().st_size):
            sys.exit(f"train.py: run {self.name} ended with {code} and left no counters in {self.counters}")

    def wrk(self, path, seconds, expected=200, headers=(), body=0, tls=False, connections=16):
        """Loads a path over HTTP/1, after one request to see that it does what it is loaded for."""
        self.probe(path, expected, headers, body, tls)
        url = f"https://127.0.0.1:{self.tls}{path}" if tls else f"http://127.0.0.1:{self.plain}{path}"
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s"]
        for header in headers:
            command += ["-H", header]
        if body:
            script = self.folder / "post.lua"
            script.write_text(f'wrk.method = "POST"\nwrk.body = string.rep("x", {body})\n')
            command += ["-s", script]
        run(command + [url])

    def h2load(self, path, seconds, tls=False, body=0):
        """Loads a path over HTTP/2."""
        url = f"https://127.0.0.1:{self.tls}{path}" if tls else f"http://127.0.0.1:{self.plain}{path}"
        command = ["h2load", "-c8", "-m10", f"-D{seconds}"]
        if body:
            data = self.folder / "post"
            data.write_bytes(bytes(body))
            command += ["-d", data]
        if " 0 2xx" in run(command + [url]):
            sys.exit(f"train.py: no request over HTTP/2 to {path} succeeded")

    def probe(self, path, expected, headers, body, tls):
        """One request; a second one where the first must not be the expected one yet."""
        if tls:
            unverified = ssl._create_unverified_context()
            client = http.client.HTTPSConnection("127.0.0.1", self.tls, timeout=10, context=unverified)
        else:
            client = http.client.HTTPConnection("127.0.0.1", self.plain, timeout=10)
        fields = dict(header.split(": ", 1) for header in headers)
        seen = []
        for _ in range(2):
            client.request("POST" if body else "GET", path, b"x" * body if body else None, fields)
            response = client.getresponse()
            response.read()
            seen.append(response.status)
            client.close()
        if expected not in seen:
            sys.exit(f"train.py: {path} answered {seen} instead of {expected} in run {self.name}")

    def websockets(self, path, count):
        """Opens tunnels one after the other, and sends through each of them."""
        key = base64.b64encode(os.urandom(16))
        ask = b"GET %s HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" % path.encode()
        ask += b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + key + b"\r\n\r\n"
        for _ in range(count):
            with socket.create_connection(("127.0.0.1", self.plain), 10) as client:
                client.sendall(ask)
                head = b""
                while b"\r\n\r\n" not in head:
                    head += client.recv(4096) or sys.exit("train.py: no answer to a WebSocket")
                if b" 101 " not in head:
                    sys.exit(f"train.py: a WebSocket was answered by {head!r}")
                for size in (10, 100, 1000, 20_000):
                    client.sendall(bytes(size))
                    while size > 0:
                        size -= len(client.recv(65536)) or sys.exit("train.py: a WebSocket ended early")


def run(command):
    """The output of a command of the load that must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode:
        sys.exit(f"train.py: {command}: {done.stdout}{done.stderr}")
    return done.stdout


def token():
    """A token that is signed by the RSA key of the tests."""

    def pack(raw):
        return base64.urlsafe_b64encode(raw).rstrip(b"=")

    claims = {"sub": "acme", "exp": int(time.time()) + 3600}
    signed = pack(b'{"alg":"RS256","typ":"JWT"}') + b"." + pack(json.dumps(claims).encode())
    sign = ["openssl", "dgst", "-sha256", "-sign", KEYS / "rsa.pem"]
    signature = subprocess.run(sign, input=signed, capture_output=True, check=True, timeout=10).stdout
    return (signed + b"." + pack(signature)).decode()


BARE = """access_log: { output: none }
limits:
  pass: { key: ip, rate: 1000000/s, burst: 100000 }
  reject: { key: ip, rate: 1/s }
locations:
  - { path: /, upstream: app }
  - { path: /pass, upstream: app, limits: pass }
  - { path: /reject, upstream: app, limits: reject }
"""

FEATURES = """access_log: { output: FOLDER/access.log }
account:
  from: jwt:sub
  jwt: { jwks: KEYS/rsa.pub.pem, algorithms: RS256 }
  keys: { file: keys.csv }
limits:
  bucket: { key: ip, rate: 1000000/s, burst: 100000 }
  window: { key: [ip, uri], algorithm: sliding_window, rate: 100000000/m }
  fixed: { key: header:X-Tenant, missing_key: ip, algorithm: fixed_window, rate: 100000000/m }
  account: { key: account, missing_key: { reject: 401 }, rate: 1000000/s, burst: 100000 }
  queue: { key: global, algorithm: leaky_bucket, rate: 2000/s, queue: 200 }
  slots: { key: global, algorithm: concurrency, max_concurrent: 4, queue: 100 }
  bytes: { key: ip, rate: 1000000000/s, charge: { units: bytes } }
  tokens: { key: ip, rate: 100000000/s, charge: { units: llm, reserve: 100 } }
  scarce: { key: ip, rate: 1/s }
locations:
  - { path: /, upstream: app }
  - { path: /chain, upstream: app, limits: [bucket, window, fixed] }
  - { path: /reject, upstream: app, limits: [bucket, window, scarce] }
  - { path: /account, upstream: app, limits: account }
  - { path: /queue, upstream: app, limits: queue }
  - { path: /slots, upstream: app, limits: slots }
  - { path: /bytes/, upstream: app, limits: bytes }
  - { path: /tokens/, upstream: app, limits: tokens }
  - { path: /auth, upstream: app, auth: { upstream: app, cache: { by: [cookie, authorization], for: 1h } } }
  - { path: "~ ^/user/[0-9]+$", upstream: app, request_headers: { set: { X-Account: "${account}" } } }
  - { path: /fixed, respond: { status: 200, body: ok } }
"""

REDIS = """access_log: { output: none }
state: { store: redis, redis: { url: "redis://127.0.0.1:PORT", timeout: 200ms } }
limits:
  bucket: { key: ip, rate: 1000000/s, burst: 100000 }
  window: { key: ip, algorithm: sliding_window, rate: 100000000/m }
  scarce: { key: ip, rate: 1/s }
  slots: { key: global, algorithm: concurrency, max_concurrent: 8, queue: 100 }
locations:
  - { path: /, upstream: app, limits: [bucket, window] }
  - { path: /reject, upstream: app, limits: [bucket, scarce] }
  - { path: /slots, upstream: app, limits: slots }
"""


def bare(gateway):
    for path, expected in (("/", 200), ("/pass", 200), ("/reject", 429)):
        gateway.wrk(path, 7, expected)
    gateway.wrk("/pass", 3, tls=True)
    gateway.wrk("/pass", 2, headers=["Connection: close"])
    gateway.h2load("/pass", 4)
    gateway.h2load("/pass", 3, tls=True)


def features(gateway):
    gateway.wrk("/user/7", 3)
    gateway.wrk("/chain", 4, headers=["X-Tenant: a"])
    gateway.wrk("/reject", 3, 429)
    gateway.wrk("/account", 3, headers=["X-Api-Key: training"])
    gateway.wrk("/account", 3, headers=[f"Authorization: Bearer {token()}"])
    gateway.wrk("/account", 1, 401)
    gateway.wrk("/auth", 2, headers=["Cookie: a=b"])
    gateway.wrk("/queue", 3)
    gateway.wrk("/slots", 3)
    gateway.wrk("/bytes/large", 3)
    gateway.wrk("/bytes/large", 2, tls=True)
    gateway.wrk("/", 3, body=65536)
    gateway.wrk("/tokens/llm", 3, body=300)
    gateway.wrk("/tokens/stream", 3, body=300)
    gateway.wrk("/fixed", 1)
    gateway.wrk("/chain", 2, tls=True, headers=["Connection: close"])
    gateway.h2load("/chain", 3)
    gateway.h2load("/reject", 2, tls=True)
    gateway.h2load("/bytes/large", 2, tls=True)
    gateway.h2load("/", 2, body=65536)
    gateway.websockets("/socket", 300)


def redis(gateway):
    gateway.wrk("/", 5)
    gateway.wrk("/reject", 3, 429)
    gateway.wrk("/slots", 3)


def main():
    program, folder = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGALRM, lambda *_: sys.exit(f"train.py: not done in {SECONDS_MAX} s"))
    signal.alarm(SECONDS_MAX)
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    backend = multiprocessing.Process(target=serve, args=(listener,), daemon=True)
    backend.start()
    port = listener.getsockname()[1]
    store = free_port()
    redis_server = subprocess.Popen(
        ["redis-server", "--port", str(store), "--bind", "127.0.0.1", "--save", "", "--dir", folder],
        stdout=subprocess.DEVNULL,
    )
    key = hashlib.sha256(b"training").hexdigest()
    (folder / "keys.csv").write_text(f"sha256,account,tier\n{key},acme,gold\n")
    texts = {
        "bare": BARE,
        "features": FEATURES.replace("FOLDER", str(folder)).replace("KEYS", str(KEYS.resolve())),
        "redis": REDIS.replace("PORT", str(store)),
    }
    try:
        wait_port(store, redis_server)
        for load in (bare, features, redis):
            name = load.__name__
            print(f"train.py: {name}", file=sys.stderr, flush=True)
            with Gateway(program, folder, name, port, texts[name]) as gateway:
                load(gateway)
        with socket.create_connection(("127.0.0.1", store), 10) as client:
            client.sendall(b"DBSIZE\r\n")
            if client.recv(100) == b":0\r\n":
                sys.exit("train.py: Redis has no counter, so no limit was shared")
    finally:
        redis_server.kill()
        backend.kill()


main()
