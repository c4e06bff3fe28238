"""A client of grpcio, with messages made from a description of the public protocol.

Prints one line for each call: the code, and the remaining units of each descriptor.
"""

import sys

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

FIELD = descriptor_pb2.FieldDescriptorProto
NUMBERS = {"string": FIELD.TYPE_STRING, "uint32": FIELD.TYPE_UINT32, "uint64": FIELD.TYPE_UINT64,
           "int64": FIELD.TYPE_INT64, "int32": FIELD.TYPE_INT32, "bool": FIELD.TYPE_BOOL}

# Message -> fields: name, number, type, whether it is repeated.
MESSAGES = {
    "Entry": [("key", 1, "string", False), ("value", 2, "string", False)],
    "UInt64Value": [("value", 1, "uint64", False)],
    "Descriptor": [("entries", 1, "Entry", True), ("hits_addend", 3, "UInt64Value", False),
                   ("is_negative_hits", 4, "bool", False)],
    "Request": [("domain", 1, "string", False), ("descriptors", 2, "Descriptor", True),
                ("hits_addend", 3, "uint32", False)],
    "Limit": [("requests_per_unit", 1, "uint32", False), ("unit", 2, "int32", False), ("name", 3, "string", False)],
    "Duration": [("seconds", 1, "int64", False), ("nanos", 2, "int32", False)],
    "Status": [("code", 1, "int32", False), ("current_limit", 2, "Limit", False),
               ("limit_remaining", 3, "uint32", False), ("duration_until_reset", 4, "Duration", False)],
    "Header": [("key", 1, "string", False), ("value", 2, "string", False)],
    "Response": [("overall_code", 1, "int32", False), ("statuses", 2, "Status", True),
                 ("response_headers_to_add", 3, "Header", True)],
    "HealthRequest": [("service", 1, "string", False)],
    "HealthResponse": [("status", 1, "int32", False)],
}


def make_messages():
    file = descriptor_pb2.FileDescriptorProto(name="rls.proto", package="rls", syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, repeated in fields:
            label = FIELD.LABEL_REPEATED if repeated else FIELD.LABEL_OPTIONAL
            added = message.field.add(name=field, number=number, label=label)
            if kind in NUMBERS:
                added.type = NUMBERS[kind]
            else:
                added.type, added.type_name = FIELD.TYPE_MESSAGE, f".rls.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    factory = message_factory.MessageFactory(pool)
    return {name: factory.GetPrototype(pool.FindMessageTypeByName(f"rls.{name}")) for name in MESSAGES}


def main(address):
    types = make_messages()
    channel = grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)])

    def method(path, request, response):
        return channel.unary_unary(
            path, request_serializer=types[request].SerializeToString, response_deserializer=types[response].FromString)

    ask = method("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", "Request", "Response")
    health = method("/grpc.health.v1.Health/Check", "HealthRequest", "HealthResponse")

    def call(domain, *descriptors, hits=0):
        request = types["Request"](domain=domain, hits_addend=hits)
        for entries in descriptors:
            added = request.descriptors.add()
            for key, value in entries.items():
                added.entries.add(key=key, value=value)
        answer = ask(request, timeout=10)
        print(answer.overall_code, [status.limit_remaining for status in answer.statuses])

    print(health(types["HealthRequest"](), timeout=10).status)
    call("shop", {"account": "acme"})
    call("shop", {"account": "acme"}, {"account": "internal-1"}, hits=999)
    call("shop", {"account": "acme"})
    for path, request in [("domain", types["Request"]()), ("method", None)]:
        try:
            if request is None:
                method("/envoy.service.ratelimit.v3.RateLimitService/Other", "Request", "Response")(
                    types["Request"](), timeout=10)
            else:
                ask(request, timeout=10)
        except grpc.RpcError as refused:
            print(refused.code().name, path in refused.details())


main(sys.argv[1])
