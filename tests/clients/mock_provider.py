"""A provider of language models on loopback: OpenAI chat completions and Responses, and Anthropic messages.

It answers as a script of the request says, which the client puts into the text of the last message: the number of
words of the answer. Usage is what it counts itself; GET /usage tells the sums.
"""

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SUMS = {"requests": 0, "input": 0, "output": 0}
LOCK = threading.Lock()


def last_text(message):
    content = message["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


class Provider(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        with LOCK:
            self.send_json(dict(SUMS))

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.headers.get("Accept-Encoding") != "identity":
            return self.send_json({"error": {"message": "the gateway must ask for identity"}}, 400)
        turns = body.get("messages") or [{"content": body["input"]}]
        words = int(last_text(turns[-1]).split()[0])
        used = {"input": 10, "output": words}
        with LOCK:
            SUMS["requests"] += 1
            SUMS["input"] += used["input"]
            SUMS["output"] += used["output"]
        answer = {
            "/v1/chat/completions": self.complete_chat,
            "/v1/responses": self.respond,
            "/v1/messages": self.send_messages,
        }[self.path]
        answer(body, words, used)

    def complete_chat(self, body, words, used):
        usage = {
            "prompt_tokens": used["input"],
            "completion_tokens": used["output"],
            "total_tokens": used["input"] + used["output"],
        }
        base = {"id": "chat-1", "created": 1, "model": body["model"]}
        if not body.get("stream"):
            message = {"role": "assistant", "content": "word " * words}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            return self.send_json({**base, "object": "chat.completion", "choices": [choice], "usage": usage})
        chunk = {**base, "object": "chat.completion.chunk"}
        events = [
            {**chunk, "choices": [{"index": 0, "delta": {"content": "word "}, "finish_reason": None}]}
            for _ in range(words)
        ]
        events.append({**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        if (body.get("stream_options") or {}).get("include_usage"):
            events.append({**chunk, "choices": [], "usage": usage})
        self.send_events([(None, event) for event in events] + [(None, "[DONE]")])

    def respond(self, body, words, used):
        usage = {
            "input_tokens": used["input"],
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": used["output"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": used["input"] + used["output"],
        }
        text = {"type": "output_text", "text": "word " * words, "annotations": []}
        item = {"type": "message", "id": "m", "status": "completed", "role": "assistant", "content": [text]}
        answer = {
            "id": "resp-1",
            "object": "response",
            "created_at": 1,
            "model": body["model"],
            "status": "completed",
            "output": [item],
            "parallel_tool_calls": False,
            "tool_choice": "auto",
            "tools": [],
            "usage": usage,
        }
        if not body.get("stream"):
            return self.send_json(answer)
        begun = {**answer, "status": "in_progress", "output": [], "usage": None}
        place = {"item_id": "m", "output_index": 0, "content_index": 0}
        empty = {"type": "output_text", "text": "", "annotations": []}
        events = [
            {"type": "response.created", "response": begun},
            {
                "type": "response.output_item.added",
                "output_index": 0,
                "item": {**item, "status": "in_progress", "content": []},
            },
            {"type": "response.content_part.added", **place, "part": empty},
            *({"type": "response.output_text.delta", "delta": "word ", **place, "logprobs": []} for _ in range(words)),
            {"type": "response.output_text.done", "text": text["text"], **place, "logprobs": []},
            {"type": "response.content_part.done", **place, "part": text},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": answer},
        ]
        events = [{**event, "sequence_number": number} for number, event in enumerate(events)]
        self.send_events([(event["type"], event) for event in events])

    def send_messages(self, body, words, used):
        message = {
            "id": "msg-1",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": [{"type": "text", "text": "word " * words}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": used["input"], "output_tokens": used["output"]},
        }
        if not body.get("stream"):
            return self.send_json(message)
        start = {"input_tokens": used["input"], "output_tokens": 1}
        begun = {**message, "content": [], "stop_reason": None, "usage": start}
        delta = {"type": "text_delta", "text": "word "}
        events = [
            {"type": "message_start", "message": begun},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            *({"type": "content_block_delta", "index": 0, "delta": delta} for _ in range(words)),
            {"type": "content_block_stop", "index": 0},
            {
                "type": "message_delta",
                "delta": {"stop_reason": "end_turn", "stop_sequence": None},
                "usage": {"output_tokens": used["output"]},
            },
            {"type": "message_stop"},
        ]
        self.send_events([(event["type"], event) for event in events])

    def send_json(self, answer, status=200):
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def send_events(self, events):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for name, event in events:
            text = event if isinstance(event, str) else json.dumps(event)
            data = f"event: {name}\ndata: {text}\n\n" if name else f"data: {text}\n\n"
            for piece in (data[: len(data) // 2].encode(), data[len(data) // 2 :].encode()):
                self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            self.wfile.flush()
            time.sleep(0.001)
        self.wfile.write(b"0\r\n\r\n")


class Server(ThreadingHTTPServer):
    def handle_error(self, *_):
        """A client that hangs up is no error here."""


if __name__ == "__main__":
    server = Server(("127.0.0.1", 0), Provider)
    print(server.server_address[1], flush=True)
    sys.stdout.close()
    server.serve_forever()
