"""A gRPC server, and a client that calls it through the gateway; both are Google's own library.

Tells the server's port, reads where the gateway is (and which authority to believe), and tells what came of each call.
"""

import sys
import threading
from concurrent import futures

import grpc

cancelled = threading.Event()


def say(request, context):
    context.set_trailing_metadata((("x-cost", "3"), ("x-seen", dict(context.invocation_metadata()).get("x-user", "nobody"))))
    return request


def refuse(request, context):
    context.abort(grpc.StatusCode.NOT_FOUND, "no such thing: 100 % ä")


def count(request, context):
    for number in range(int(request)):
        yield b"%d" % number


def total(requests, context):
    return b"%d" % sum(len(request) for request in requests)


def talk(requests, context):
    for request in requests:
        yield b"re: " + request


def never(request, context):
    context.add_callback(cancelled.set)
    cancelled.wait(10)
    return b""


def serve():
    methods = {
        "Say": grpc.unary_unary_rpc_method_handler(say),
        "Limited": grpc.unary_unary_rpc_method_handler(say),
        "Refuse": grpc.unary_unary_rpc_method_handler(refuse),
        "Count": grpc.unary_stream_rpc_method_handler(count),
        "Total": grpc.stream_unary_rpc_method_handler(total),
        "Talk": grpc.stream_stream_rpc_method_handler(talk),
        "Never": grpc.unary_unary_rpc_method_handler(never),
    }
    server = grpc.server(futures.ThreadPoolExecutor(16))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, port


def failed(call):
    try:
        call()
        return "OK"
    except grpc.RpcError as error:
        return f"{error.code().name} {error.details()}"


def main():
    server, port = serve()
    print(port, flush=True)
    for line in sys.stdin:
        address, *authority = line.split()
        options = [("grpc.ssl_target_name_override", "localhost"), ("grpc.enable_retries", 0)]
        if authority:
            with open(authority[0], "rb") as file:
                credentials = grpc.ssl_channel_credentials(file.read())
            channel = grpc.secure_channel(address, credentials, options)
        else:
            channel = grpc.insecure_channel(address, options)
        path = "/test.Echo/"
        unary = lambda name: channel.unary_unary(path + name)
        answer, call = unary("Say").with_call(b"hello", metadata=(("x-user", "ann"),), timeout=10)
        print("say", answer.decode(), *sorted(f"{k}={v}" for k, v in call.trailing_metadata() if k.startswith("x-")))
        large = b"l" * 3_000_000
        print("large", unary("Say")(large, timeout=10) == large)
        print("count", b" ".join(channel.unary_stream(path + "Count")(b"1000", timeout=10)) == b" ".join(b"%d" % n for n in range(1000)))
        print("total", channel.stream_unary(path + "Total")(iter([b"x" * 10_000] * 50), timeout=10).decode())
        turns = threading.Semaphore(1)

        def words():
            for number in range(20):
                turns.acquire()
                yield b"%d" % number

        said = []
        for reply in channel.stream_stream(path + "Talk")(words(), timeout=10):
            said.append(reply)
            turns.release()
        print("talk", said == [b"re: %d" % number for number in range(20)])
        print("refuse", failed(lambda: unary("Refuse")(b"", timeout=10)))
        print("never", failed(lambda: unary("Never")(b"", timeout=0.3)).split()[0], cancelled.wait(5))
        cancelled.clear()
        print("limited", failed(lambda: unary("Limited")(b"", timeout=10)), failed(lambda: unary("Limited")(b"", timeout=10)).split()[0])
        print("end", flush=True)
        channel.close()
    server.stop(0)


main()
