"""Clients of MCP through examples/mcp_tools.yaml, before a server of MCP on loopback.

Usage: mcp_tools.py GATEWAY [NODE CONFORMANCE], in a Python with the package mcp. Fails if a client does not understand a
rejection, or is not admitted after the wait that it was told; and if a scenario of the conformance run that passes at
the server itself fails through the gateway.
"""

import asyncio
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time

from mcp import Client
from mcp.shared.exceptions import MCPError

HERE = pathlib.Path(__file__).parent
VERSION = "2026-07-28"


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Programs:
    """The gateway and the server, ended with the block. `rates` replaces the rates of the example."""

    def __init__(self, gateway, rates):
        self.gateway, self.rates = gateway, rates

    def __enter__(self):
        port = free_port()
        self.direct = f"http://127.0.0.1:{port}/mcp"
        command = [sys.executable, str(HERE / "mcp_server.py"), str(port)]
        self.server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while socket.socket().connect_ex(("127.0.0.1", port)):
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.05)
        self.folder = tempfile.TemporaryDirectory()
        file = pathlib.Path(self.folder.name) / "gateway.yaml"
        text = (HERE / "../../examples/mcp_tools.yaml").read_text()
        text = text.replace("upstream: demo", f'upstream: "http://127.0.0.1:{port}"')
        for written, rate in self.rates.items():
            text = text.replace(f"rate: {written}", f"rate: {rate}")
        # The server compares Host with its address.
        text += "    host_header: upstream\n"
        file.write_text("listen: 127.0.0.1:0\nadmin: none\n" + text)
        self.process = subprocess.Popen(
            [self.gateway, "run", "-c", str(file)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        listening = None
        while not listening:
            line = self.process.stderr.readline()
            assert line, "the gateway did not start"
            listening = re.search(r"listening (http://[0-9.:]+)", line)
        self.url = listening.group(1) + "/mcp"
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.server.kill()
        self.process.wait(10)
        self.folder.cleanup()


async def calls_wait_as_told(programs):
    async with Client(programs.url) as client:
        for tool in ("test_simple_text", "größe"):
            calls = rejections = 0
            begun = time.monotonic()
            while calls < 4:
                try:
                    await client.call_tool(tool, {})
                    calls += 1
                except MCPError as error:
                    assert error.code == -32023, error
                    wait = error.error.data["retry_after_ms"]
                    assert 0 < wait <= 1000, wait
                    rejections += 1
                    assert rejections < 10, "a wait as told leads to another rejection"
                    await asyncio.sleep(wait / 1000)
            # Two at once, and one in each second after them.
            assert rejections and time.monotonic() - begun > 1.5, rejections


def conformance(node, program, url):
    """The scenarios that pass."""
    command = [node, program, "server", "--url", url, "--suite", "all", "--spec-version", VERSION]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    return set(re.findall(r"^✓ ([a-z0-9-]+):", run.stdout + run.stderr, re.MULTILINE))


def main():
    gateway, *node = sys.argv[1:]
    with Programs(gateway, {"10/m": "2/2s", "60/m": "600/m"}) as programs:
        asyncio.run(calls_wait_as_told(programs))
    print("calls wait as told: ok", flush=True)
    if not node:
        return
    with Programs(gateway, {"10/m": "10000/m", "60/m": "10000/m"}) as programs:
        direct, through = conformance(*node, programs.direct), conformance(*node, programs.url)
    assert len(direct) >= 5, direct
    assert direct <= through, direct - through
    print(f"conformance: ok, {len(through)} scenarios pass through the gateway, {len(direct)} without it", flush=True)


main()
