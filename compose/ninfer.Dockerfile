# NInfer's own container, built from a NInfer source tree:
#
#   tree=/srv/ninfer-src
#   docker build -f compose/ninfer.Dockerfile -t ninfer:local \
#     --build-arg COMMIT="$(git -C "$tree" rev-parse HEAD)" --build-arg READS=2 "$tree"
#
# COMMIT is required: the image carries it, so that one can see years later what it was built from.
# READS is the artifact version that this tree reads. slotproxy refuses an artifact of another version before anything
# stops; left out, it knows only what the image has served.
#
# Give each pair a tree of its own (`git worktree add`): a tree that moves builds an engine that can't read the model.
# Needs no BuildKit. Other base images: --build-arg CUDA=…, or BUILD_IMAGE and RUN_IMAGE.
ARG CUDA=13.1.2
ARG BUILD_IMAGE=nvidia/cuda:${CUDA}-devel-ubuntu24.04
ARG RUN_IMAGE=nvidia/cuda:${CUDA}-runtime-ubuntu24.04

FROM ${BUILD_IMAGE} AS build
ARG COMMIT
RUN [ -n "$COMMIT" ] || { \
        echo "COMMIT is missing: add --build-arg COMMIT=\"\$(git -C TREE rev-parse HEAD)\", the commit that is built" >&2; \
        exit 1; \
    }
ENV DEBIAN_FRONTEND=noninteractive
RUN apt-get update && apt-get install --yes --no-install-recommends \
        cmake ninja-build pkg-config python3 \
        libavcodec-dev libavformat-dev libavutil-dev libcurl4-openssl-dev libswscale-dev
WORKDIR /src
COPY . .
RUN cmake -S . -B /build -G Ninja -DCMAKE_BUILD_TYPE=Release && cmake --build /build --parallel --target ninfer-serve

# The box's command line says `--model ARTIFACT`, upstream's builds take the artifact as first argument: both work here.
RUN printf '%s\n' '#!/bin/sh' '[ "$1" = --model ] && shift' 'exec /opt/ninfer/ninfer-serve "$@"' > /build/launch \
    && chmod 755 /build/launch

FROM ${RUN_IMAGE}
RUN apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
        ca-certificates curl libavcodec60 libavformat60 libavutil58 libcurl4t64 libswscale7 \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /build/apps/ninfer-serve /opt/ninfer/ninfer-serve
COPY --from=build /build/launch /usr/local/bin/ninfer-serve
ARG COMMIT
ARG READS
LABEL org.opencontainers.image.title="NInfer" \
      org.opencontainers.image.revision="${COMMIT}" \
      slotproxy.ninfer.reads="${READS}"
EXPOSE 8095
CMD ["ninfer-serve", "--help"]
