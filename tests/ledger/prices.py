"""A ledger of prices, apart from the gateway's: the mocked calls of four providers, and what each of them costs.

Usage: prices.py CALLS FILE. Writes the file of prices, prints the port of the providers, waits for the address of the
gateway on stdin, makes the calls through it, and prints a JSON list with an entry for each: its path, account, status,
millionths of money and tokens.
"""

import asyncio
import json
import random
import re
import sys
from decimal import ROUND_CEILING, Decimal

CONNECTIONS = 8
KINDS = ["input", "cached", "cache_write", "output"]
# In the order of the file, general names first; of two with as many literal characters the first counts.
PRICES = {
    "*-mini*": {"input": "0.333333", "cached": "0", "output": "0.999999"},
    "o9-mi*": {"input": "7"},
    "gpt-5*": {"input": "1.25", "output": "10.000001", "above": {"input_tokens": "272000", "input": "2.5"}},
    "gpt-5-mini*": {"input": "0.25", "cached": "0.025", "output": "2.00"},
    "claude-*": {"input": "3", "cached": "0.300001", "cache_write": "3.75", "output": "15"},
    "claude-*-opus*": {
        "input": "15", "cached": "1.5", "cache_write": "18.75", "output": "75",
        "above": {"input_tokens": "200000", "input": "30", "output": "112.5"},
    },
    "gemini-2.5-pro": {"input": "1.25", "cached": "0.31", "output": "10"},
    "gemini-*": {"input": "0.000001", "output": "0.000007"},
}
# That of the limit for other models.
UNKNOWN = {"input": "5", "cached": "0.5", "output": "20.000001", "above": {"input_tokens": "50000", "output": "25"}}
MODELS = ["gpt-5-mini", "gpt-5", "gpt-5-pro", "o9-mini", "claude-4-opus", "claude-4-sonnet"]
MODELS += ["gemini-2.5-pro", "gemini-3-flash"]
STRANGERS = ["GPT-5", "mistral", "xgemini-1", ""]


def find_price(model):
    """The price of a name with most literal characters, and then of the first."""
    fits = lambda name: re.fullmatch(".*".join(map(re.escape, name.split("*"))), model or "", re.S)
    found = [(len(name.replace("*", "")), -at, name) for at, name in enumerate(PRICES) if fits(name)]
    return PRICES[max(found)[2]] if found else None


def cost(price, tokens):
    """Millionths of money, rounded up once."""
    prices = dict(price)
    prices.setdefault("cached", prices["input"])
    prices.setdefault("cache_write", prices["input"])
    above = prices.pop("above", None)
    if above and sum(tokens[kind] for kind in KINDS[:3]) > int(above["input_tokens"]):
        prices.update(above)
    whole = sum(Decimal(prices[kind]) * tokens[kind] for kind in KINDS) / Decimal(10**6)
    return int(whole.quantize(Decimal("0.000001"), ROUND_CEILING) * 10**6)


class Call:
    """One call, by its number: what is asked, what the provider answers, and what that costs."""

    def __init__(self, number):
        self.dice = dice = random.Random(number)
        self.provider = dice.choice(["chat", "responses", "anthropic", "gemini"])
        self.streams = dice.random() < 0.5
        self.ending = dice.choices(["usage", "silent", "error", "strict"], [85, 6, 6, 3])[0]
        model = dice.choice(MODELS + STRANGERS[: 2 if self.ending != "strict" else 0])
        if self.ending == "strict":
            model = dice.choice(STRANGERS)
        self.path = f"/{'strict' if self.ending == 'strict' else 'call'}/{number}"
        message = {"role": "user", "content": "x" * dice.randrange(200)}
        request = {"max_tokens": dice.randrange(1, 5000), "messages": [message]}
        if self.provider != "gemini" or dice.random() < 0.5:
            request = {"model": model, **request}
        elif self.ending != "strict":
            model = None
        self.body = json.dumps(request).encode()
        self.named = dice.choice([model, model and model + "-2026-01-02", dice.choice(MODELS), "unlisted", None])
        self.text = "y" * dice.randrange(1, 400)
        size = lambda: dice.choice([0, dice.randrange(9), dice.randrange(3_000), dice.randrange(150_000)])
        self.tokens = {kind: size() for kind in KINDS}
        self.tokens["output"] += 1
        if self.provider != "anthropic":
            self.tokens["cache_write"] = 0
        self.status = {"error": dice.choice([400, 500]), "strict": 400}.get(self.ending, 200)
        if self.provider == "anthropic" and self.ending == "silent":
            self.ending = "usage"
        self.charge(model)

    def charge(self, model):
        """What the call costs: by the model of the answer, if that has a price, or by that of the request."""
        estimate = -(-len(self.body) // 4)
        if self.ending == "error":
            self.tokens = {"input": estimate, "cached": 0, "cache_write": 0, "output": 0}
            self.named = None
        if self.ending == "silent":
            output = -(-len(self.text) // 4)
            self.tokens = {"input": estimate, "cached": 0, "cache_write": 0, "output": output}
        price = find_price(self.named) or find_price(model) or UNKNOWN
        is_charged = self.ending != "strict"
        self.money = cost(price, self.tokens) if is_charged else 0
        self.total = sum(self.tokens.values()) if is_charged else 0

    def reply(self):
        """The content type of the answer, and its parts."""
        if self.ending == "error":
            return "application/json", [json.dumps({"error": {"message": "no", "model": "gpt-5"}})]
        documents = getattr(self, self.provider)()
        if not self.streams:
            return "application/json", [json.dumps(documents)]
        if self.provider == "gemini" and self.dice.random() < 0.3:
            return "application/json", ["[", ",\r\n".join(json.dumps(document) for document in documents), "]"]
        end = ["data: [DONE]\n\n"] if self.provider == "chat" else []
        return "text/event-stream", [f"data: {json.dumps(document)}\n\n" for document in documents] + end

    def named_as(self, member):
        return {} if self.named is None else {member: self.named}

    def chat(self):
        tokens, model = self.tokens, self.named_as("model")
        prompt = tokens["input"] + tokens["cached"]
        usage = {"prompt_tokens": prompt, "completion_tokens": tokens["output"]}
        usage["total_tokens"] = prompt + tokens["output"]
        if tokens["cached"] or self.dice.random() < 0.5:
            usage["prompt_tokens_details"] = {"cached_tokens": tokens["cached"]}
        usage = {} if self.ending == "silent" else {"usage": usage}
        if not self.streams:
            return {**model, "choices": [{"message": {"content": self.text}}], **usage}
        half = len(self.text) // 2
        pieces = [self.text[:half], self.text[half:]]
        chunks = [{**model, "choices": [{"delta": {"content": piece}}]} for piece in pieces]
        return chunks + [{**model, "choices": [], **usage}]

    def responses(self):
        tokens, model = self.tokens, self.named_as("model")
        usage = {"input_tokens": tokens["input"] + tokens["cached"], "output_tokens": tokens["output"]}
        usage["input_tokens_details"] = {"cached_tokens": tokens["cached"]}
        usage = {} if self.ending == "silent" else {"usage": usage}
        whole = {**model, "output": [{"content": [{"text": self.text}]}], **usage}
        if not self.streams:
            return whole
        begun = {"type": "response.created", "response": {**model, "usage": None}}
        delta = {"type": "response.output_text.delta", "delta": self.text}
        return [begun, delta, {"type": "response.completed", "response": {**whole, "output": []}}]

    def anthropic(self):
        tokens, model = self.tokens, self.named_as("model")
        usage = {"input_tokens": tokens["input"], "cache_read_input_tokens": tokens["cached"]}
        usage.update(cache_creation_input_tokens=tokens["cache_write"], output_tokens=tokens["output"])
        if not self.streams:
            return {**model, "content": [{"type": "text", "text": self.text}], "usage": usage}
        begun = {"type": "message_start", "message": {**model, "content": [], "usage": {**usage, "output_tokens": 1}}}
        delta = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": self.text}}
        ended = {"type": "message_delta", "delta": {}, "usage": {"output_tokens": tokens["output"]}}
        return [begun, delta, ended, {"type": "message_stop"}]

    def gemini(self):
        tokens, model = self.tokens, self.named_as("modelVersion")
        tools, thoughts = self.dice.randrange(tokens["input"] + 1), self.dice.randrange(tokens["output"])
        usage = {
            "promptTokenCount": tokens["input"] - tools + tokens["cached"],
            "toolUsePromptTokenCount": tools,
            "cachedContentTokenCount": tokens["cached"],
            "thoughtsTokenCount": thoughts,
            "candidatesTokenCount": tokens["output"] - thoughts,
        }
        part = lambda text: {"candidates": [{"content": {"parts": [{"text": text}]}}], **model}
        told = {} if self.ending == "silent" else {"usageMetadata": usage}
        if not self.streams:
            return {**part(self.text), **told}
        half = len(self.text) // 2
        earlier = {} if self.ending == "silent" else {"usageMetadata": {**usage, "candidatesTokenCount": 1}}
        return [{**part(self.text[:half]), **earlier}, {**part(self.text[half:]), **told}]


async def read_message(reader):
    """The first line of a message, and its body."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    first = head.split("\r\n", 1)[0]
    if re.search(r"(?im)^transfer-encoding: chunked", head):
        body = b""
        while True:
            size = int(await reader.readline(), 16)
            body += (await reader.readexactly(size + 2))[:-2]
            if not size:
                return first, body
    length = re.search(r"(?im)^content-length: (\d+)", head)
    return first, await reader.readexactly(int(length[1]) if length else 0)


async def provide(reader, writer):
    """Answers the calls of a connection."""
    try:
        while True:
            first, _ = await read_message(reader)
            call = Call(int(first.split(" ")[1].rsplit("/", 1)[1]))
            kind, parts = call.reply()
            head = f"HTTP/1.1 {call.status} x\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n"
            writer.write(head.encode())
            for part in parts:
                data = part.encode()
                for piece in [data[: len(data) // 2], data[len(data) // 2 :]]:
                    if piece:
                        writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
                await writer.drain()
            writer.write(b"0\r\n\r\n")
            await writer.drain()
    except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
        writer.close()


async def make_calls(address, numbers):
    """Makes calls over one connection, until none is left."""
    reader, writer = await asyncio.open_connection(*address.rsplit(":", 1))
    for number in numbers:
        call = Call(number)
        head = f"POST {call.path} HTTP/1.1\r\nHost: x\r\nX-A: {call.provider}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(call.body)}\r\n\r\n".encode() + call.body)
        first, _ = await read_message(reader)
        status = int(first.split(" ")[1])
        assert status == call.status, f"{call.path}: {first}"
    writer.close()


def write_prices(path):
    shown = lambda price: ", ".join(
        f"{name}: {value if isinstance(value, str) else '{ ' + shown(value) + ' }'}" for name, value in price.items()
    )
    with open(path, "w") as file:
        file.writelines(f'"{name}": {{ {shown(price)} }}\n' for name, price in PRICES.items())


async def main():
    calls, path = int(sys.argv[1]), sys.argv[2]
    write_prices(path)
    server = await asyncio.start_server(provide, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    address = (await asyncio.to_thread(sys.stdin.readline)).strip()
    numbers = iter(range(calls))
    await asyncio.gather(*(make_calls(address, numbers) for _ in range(CONNECTIONS)))
    made = [Call(number) for number in range(calls)]
    print(json.dumps([[call.path, call.provider, call.status, call.money, call.total] for call in made]), flush=True)


asyncio.run(main())
