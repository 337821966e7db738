# syntax=docker/dockerfile:1
# Tailpost in a small image, as a user without rights:
#   docker build --tag tailpost .
FROM rust:1.95-slim-bookworm AS build
# ring and the allocator have parts in C
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev make \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked --bin tailpost \
    && install -D target/release/tailpost /out/tailpost

# The demo's shop and customer; scripts/demo --docker runs it.
FROM build AS build-demo
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --locked --bin demo-observer \
    && install -D target/debug/demo-observer /out/demo-observer

FROM debian:bookworm-slim AS demo
COPY --from=build-demo /out/demo-observer /usr/local/bin/demo-observer
USER 65532:65532

FROM debian:bookworm-slim AS tailpost
# the certificate authorities that amqps:// and sslrootcert=system go by
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /out/tailpost /usr/local/bin/tailpost
COPY LICENSE-MIT LICENSE-APACHE /usr/share/doc/tailpost/
# In a container, 127.0.0.1 is where nobody asks.
ENV TAILPOST_LISTEN=0.0.0.0:9464
EXPOSE 9464
# Tailpost drains on SIGTERM, within --drain-timeout (8 s).
STOPSIGNAL SIGTERM
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/tailpost"]
CMD ["postgres", "run"]
