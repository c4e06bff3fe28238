"""Real clients in a flash sale, with turns and without: httpx with tenacity, curl --retry, and undici's retry agent.

Usage: turns.py GATEWAY NODE MODULES, in a Python with the packages httpx and tenacity; MODULES is the folder with undici. 200 clients at 20 requests per second, which all
begin at once. Fails if a client is refused more than 1.05 times on average, or if the last one is served later than a
second, or 5 %, after the ideal.
"""

import asyncio
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import httpx
import tenacity

CLIENTS, RATE = 200, 20
IDEAL = (CLIENTS - RATE) / RATE
FILE = """listen: 127.0.0.1:0
admin: none
log: {{ format: json }}
access_log: none
locations:
  - path: /
    upstream: demo
    limits: {{ key: global, rate: {rate}/s }}
    on_reject: {{ retry_after: {retry_after}, turns_at_most: 30s }}
"""


class Gateway:
    def __init__(self, program, retry_after):
        self.program, self.text = program, FILE.format(rate=RATE, retry_after=retry_after)

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()
        file = pathlib.Path(self.folder.name) / "gateway.yaml"
        file.write_text(self.text)
        self.process = subprocess.Popen([self.program, "run", "-c", str(file)], stderr=subprocess.PIPE, text=True)
        while True:
            line = self.process.stderr.readline()
            assert line, "the gateway did not start"
            if listening := re.search(r"listening (http://[0-9.:]+)", line):
                return listening.group(1)

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(10)
        self.folder.cleanup()


async def httpx_client(url, client):
    """One request until it is served; returns the refusals. It waits as Retry-After says."""

    def told(state):
        return float(state.outcome.result().headers["retry-after"])

    refused = tenacity.retry_if_result(lambda answer: answer.status_code == 429)
    retrying = tenacity.AsyncRetrying(wait=told, retry=refused, stop=tenacity.stop_after_delay(60))
    answer = await retrying(client.get, url)
    assert answer.status_code == 200, answer
    return retrying.statistics["attempt_number"] - 1


async def httpx_crowd(url):
    limits = httpx.Limits(max_connections=CLIENTS)
    async with httpx.AsyncClient(limits=limits, timeout=30) as client:
        return await asyncio.gather(*(httpx_client(url, client) for _ in range(CLIENTS)))


async def curl_client(url):
    command = ["curl", "--no-progress-meter", "--retry", "30", "-w", "%{http_code}", url]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    status, warnings = await process.communicate()
    assert process.returncode == 0 and status.endswith(b"200"), (status, warnings)
    return warnings.count(b"Will retry")


async def curl_crowd(url):
    return await asyncio.gather(*(curl_client(url) for _ in range(CLIENTS)))


async def undici_crowd(url):
    command = [NODE, str(pathlib.Path(__file__).with_suffix(".mjs")), url, str(CLIENTS), MODULES]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    refusals, _ = await process.communicate()
    assert process.returncode == 0
    return json.loads(refusals)


def main(program):
    for crowd in (httpx_crowd, curl_crowd, undici_crowd):
        for retry_after in ("exact", "turns"):
            with Gateway(program, retry_after) as url:
                began = time.monotonic()
                refusals = sum(asyncio.run(crowd(url))) / CLIENTS
                took = time.monotonic() - began
            print(f"{crowd.__name__}, {retry_after}: {refusals:.2f} refusals each, {took:.1f} s of {IDEAL:.1f}")
            if retry_after == "turns":
                assert refusals <= 1.05, refusals
                # The clients themselves take a while to start.
                assert took <= IDEAL + max(1, 0.05 * IDEAL) + 1, took


NODE, MODULES = sys.argv[2:]
main(sys.argv[1])
