# The gateway in a small image that runs as nobody in particular. Targets: gateway (default), load.

FROM rust:1-bookworm AS builder
WORKDIR /build
COPY . .
RUN cargo build --release --locked --bin sluicegate

# wrk, for the `load` profile of docker-compose.yml.
FROM debian:bookworm-slim AS load
RUN apt-get update \
    && apt-get install -y --no-install-recommends wrk \
    && rm -rf /var/lib/apt/lists/*
USER 65532:65532
ENTRYPOINT ["wrk"]

FROM debian:bookworm-slim AS gateway
COPY --from=builder /build/target/release/sluicegate /usr/local/bin/sluicegate
COPY gateway.yaml /etc/sluicegate/gateway.yaml
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["sluicegate"]
CMD ["run", "-c", "/etc/sluicegate/gateway.yaml"]
