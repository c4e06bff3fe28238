# The gateway in a small image that runs as an unprivileged user. Targets: gateway (default), load, debug.
#
# The image serves its own gateway.yaml, with an admin address inside the container only. To read metrics from outside,
# mount a file with admin: { listen: 0.0.0.0:9901, token: "${ADMIN_TOKEN}" } and publish the port. Give `docker stop`
# more time than server.timeouts.shutdown (30s): docker stop -t 40.

FROM rust:1.95.0-bookworm AS builder
WORKDIR /build
# The dependencies are a layer of their own, which only the manifests, Cargo.lock and .cargo (how jemalloc is built)
# invalidate. They are compiled for empty crates; the benchmarks, whose files are missing here, are left out.
COPY Cargo.toml Cargo.lock ./
COPY .cargo .cargo
COPY crates/admission/Cargo.toml crates/admission/
COPY crates/base/Cargo.toml crates/base/
COPY crates/config/Cargo.toml crates/config/
COPY crates/http/Cargo.toml crates/http/
COPY crates/import/Cargo.toml crates/import/
COPY crates/limit/Cargo.toml crates/limit/
COPY crates/model/Cargo.toml crates/model/
COPY crates/observe/Cargo.toml crates/observe/
COPY crates/proxy/Cargo.toml crates/proxy/
COPY crates/store/Cargo.toml crates/store/
COPY crates/testkit/Cargo.toml crates/testkit/
RUN sed -i '/^\[\[bench\]\]$/,/^$/d' Cargo.toml \
    && for crate in . crates/*; do mkdir "$crate/src" && touch "$crate/src/lib.rs"; done \
    && echo 'fn main() {}' > src/main.rs \
    && cargo build --release --locked --bin sluicegate
# The files may be older than the empty crates, and cargo compares times. `sluicegate init` has gateway.yaml in it.
COPY src src
COPY crates crates
COPY gateway.yaml ./
RUN touch src/main.rs src/lib.rs crates/*/src/lib.rs \
    && cargo build --release --locked --bin sluicegate \
    && cd target/release \
    && objcopy --only-keep-debug sluicegate sluicegate.debug \
    && objcopy --strip-all --add-gnu-debuglink=sluicegate.debug sluicegate

# What a debugger reads beside the program: docker build --target debug --output . .
FROM scratch AS debug
COPY --from=builder /build/target/release/sluicegate.debug /

# wrk, for the `load` profile of docker-compose.yml.
FROM debian:12.13-slim AS load
RUN apt-get update \
    && apt-get install -y --no-install-recommends wrk \
    && rm -rf /var/lib/apt/lists/*
USER 65532:65532
ENTRYPOINT ["wrk"]

# ca-certificates: the system's authorities verify https:// servers and rediss://.
FROM debian:12.13-slim AS gateway
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/*
COPY --from=builder /build/target/release/sluicegate /usr/local/bin/sluicegate
COPY gateway.yaml /etc/sluicegate/gateway.yaml
USER 65532:65532
EXPOSE 8080 9901
# Calls the admin address of the file, with its token.
HEALTHCHECK --interval=10s --timeout=5s --start-period=5s --retries=3 \
    CMD ["sluicegate", "status", "-c", "/etc/sluicegate/gateway.yaml"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["sluicegate"]
CMD ["run", "-c", "/etc/sluicegate/gateway.yaml"]
