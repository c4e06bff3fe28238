"""The clients of OpenAI and Anthropic through examples/llm_gateway.yaml, before a provider on loopback.

Usage: llm.py GATEWAY, in a Python with the packages openai and anthropic. Fails if a budget does not hold to the token,
if a rejection is not understood as one of a rate limit, or if a retry does not wait as told.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

import anthropic
import openai

HERE = pathlib.Path(__file__).parent
# Small enough for a test, and quickly refilled.
MINUTE, DAY = "100000/m", "2000000/1d"
SMALL = "600/6s"
ACCOUNT = {"X-Account-Id": "acme"}


class Programs:
    """The gateway and the provider, ended with the block."""

    def __init__(self, gateway, rates):
        self.gateway, self.rates = gateway, rates

    def __enter__(self):
        provider = [sys.executable, str(HERE / "mock_provider.py")]
        self.provider = subprocess.Popen(provider, stdout=subprocess.PIPE, text=True)
        self.provider_url = f"http://127.0.0.1:{self.provider.stdout.readline().strip()}"
        self.folder = tempfile.TemporaryDirectory()
        file = pathlib.Path(self.folder.name) / "gateway.yaml"
        text = (HERE / "../../examples/llm_gateway.yaml").read_text()
        text = text.replace("upstream: demo", f"upstream: {self.provider_url}")
        text = text.replace(f"[{MINUTE}, {DAY}]", self.rates).replace("default: 2000", "default: 150")
        head = "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nlog: { format: json }\n"
        file.write_text(head + text)
        self.process = subprocess.Popen(
            [self.gateway, "run", "-c", str(file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.url = self.admin = None
        while not (self.url and self.admin):
            line = self.process.stderr.readline()
            assert line, "the gateway did not start"
            listening = re.search(r"listening (http://[0-9.:]+)", line)
            admin = re.search(r"admin (http://[0-9.:]+)", line)
            self.url = listening.group(1) if listening else self.url
            self.admin = admin.group(1) if admin else self.admin
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.provider.kill()
        self.process.wait(10)
        self.folder.cleanup()

    def charged(self, limit):
        with urllib.request.urlopen(f"{self.admin}/metrics") as page:
            lines = page.read().decode().splitlines()
        mark = f'sluicegate_charged_units_total{{limit="{limit}"'
        return sum(float(line.split()[-1]) for line in lines if line.startswith(mark))

    def used(self):
        with urllib.request.urlopen(f"{self.provider_url}/usage") as page:
            return json.load(page)

    def openai(self, **more):
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="key", default_headers=ACCOUNT, **more)

    def anthropic(self, **more):
        return anthropic.Anthropic(base_url=self.url, api_key="key", default_headers=ACCOUNT, **more)


def eventually(what, condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def chat(client, words, **more):
    turns = [{"role": "user", "content": f"{words} words, please"}]
    return client.chat.completions.create(model="m", messages=turns, max_completion_tokens=words, **more)


def message(client, words):
    turns = [{"role": "user", "content": f"{words} words, please"}]
    return dict(model="m", messages=turns, max_tokens=words)


def usage_is_charged_to_the_token(gateway):
    with Programs(gateway, f"[{MINUTE}, {DAY}]") as programs:
        client = programs.openai(max_retries=0)
        assert chat(client, 30).usage.completion_tokens == 30
        text = ""
        for chunk in chat(client, 50, stream=True, stream_options={"include_usage": True}):
            text += chunk.choices[0].delta.content or "" if chunk.choices else ""
        assert text == "word " * 50
        answer = client.responses.create(model="m", input="20 words, please", max_output_tokens=20)
        assert answer.output_text == "word " * 20
        with client.responses.stream(model="m", input="25 words, please", max_output_tokens=25) as stream:
            assert stream.get_final_response().usage.output_tokens == 25
        used = programs.used()
        assert used == {"requests": 4, "input": 40, "output": 125}, used
        eventually("165 tokens", lambda: programs.charged("openai-tokens") == 165)

        client = programs.anthropic(max_retries=0)
        assert client.messages.create(**message(client, 30)).usage.output_tokens == 30
        with client.messages.stream(**message(client, 40)) as stream:
            assert stream.get_final_text() == "word " * 40
        # Output weighs 5.
        eventually("370 units", lambda: programs.charged("anthropic-tokens") == 2 * 10 + 5 * 70)


def hanging_up_is_not_free(gateway):
    with Programs(gateway, f"[{MINUTE}, {DAY}]") as programs:
        stream = chat(programs.openai(max_retries=0), 5000, stream=True)
        for _, _chunk in zip(range(400), stream):
            pass
        stream.close()
        # 5,000 tokens were reserved, with some for the request; the text that came is less.
        eventually("the reservation", lambda: programs.charged("openai-tokens") >= 5000)
        assert programs.charged("openai-tokens") < 5000 * 5 / 4


def rejections_are_understood(gateway):
    with Programs(gateway, f"[{SMALL}, {DAY}]") as programs:
        client = programs.openai(max_retries=0)
        used = 0
        try:
            while used < 1500:
                used += chat(client, 100).usage.total_tokens
            raise AssertionError("the budget does not hold")
        except openai.RateLimitError as error:
            assert error.code == "rate_limit_exceeded", error.body
            wait = float(error.response.headers["retry-after"])
            assert 0 < wait <= 6, wait
        assert used <= 600 + 6 * 100, used

        client = programs.anthropic(max_retries=0)
        try:
            for _ in range(20):
                client.messages.create(**message(client, 100))
            raise AssertionError("the budget does not hold")
        except anthropic.RateLimitError as error:
            assert error.body["error"]["type"] == "rate_limit_error", error.body


def retries_wait_as_told(gateway):
    with Programs(gateway, f"[{SMALL}, {DAY}]") as programs:
        for client, send in [
            (programs.openai(max_retries=2), lambda client: chat(client, 100)),
            (programs.anthropic(max_retries=2), lambda client: client.messages.create(**message(client, 20))),
        ]:
            begun = time.monotonic()
            for _ in range(8):
                send(client)
            # 8 × 110 units of a bucket of 600 that is refilled with 100 a second.
            assert time.monotonic() - begun > 1.5


if __name__ == "__main__":
    for test in (
        usage_is_charged_to_the_token,
        hanging_up_is_not_free,
        rejections_are_understood,
        retries_wait_as_told,
    ):
        test(sys.argv[1])
        print(f"{test.__name__.replace('_', ' ')}: ok", flush=True)
