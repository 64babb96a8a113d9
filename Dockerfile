# A node, and the Spark pipeline behind it:
#
#   docker build --target node  -t recon-node .
#   docker build --target spark -t spark-sink .
#
# Both for amd64 and arm64, with the version in their labels: config/docker-bake.hcl. BuildKit is
# needed (Docker 23 or newer; before that, set DOCKER_BUILDKIT=1).
#
# The dependencies have layers of their own, made anew only when the files in requirements/
# name others. Both images share those of the node; a change of the source makes one small layer.
# pip's downloads are kept in a cache that is no part of any image.
ARG PYTHON=python:3.12-slim-bookworm

FROM ${PYTHON} AS dependencies
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev libgmp-dev \
    && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/recon
ENV PATH=/opt/recon/bin:$PATH
WORKDIR /src
COPY requirements/node.lock .
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --require-hashes --requirement node.lock

# fastecdsa and cbrrr come without wheels: the compiler that they need stays here.
FROM dependencies AS project
COPY requirements/build.lock .
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --require-hashes --requirement build.lock
# The version is that of git's tag, which is not in the image.
ARG VERSION=0.1.0.dev0
ENV SETUPTOOLS_SCM_PRETEND_VERSION_FOR_RECON_NODE=${VERSION}
COPY pyproject.toml README.md LICENSE LICENSE-MIT LICENSE-APACHE ./
COPY recon_node recon_node
COPY spark_sink spark_sink
# A prefix of its own holds what this adds to /opt/recon, and nothing else.
RUN pip install --no-cache-dir --no-deps --no-build-isolation --prefix /project .

FROM ${PYTHON} AS base
# Python's image comes without the compiled standard library, and the user below could not keep it.
RUN apt-get update \
    && apt-get install -y --no-install-recommends libgmp10 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 recon \
    && install -d -o recon /data /tables /bootstrap /snapshots \
    && python -m compileall -q -x site-packages "$(python -c 'import os; print(os.path.dirname(os.__file__))')"
ENV PATH=/opt/recon/bin:$PATH PYTHONUNBUFFERED=1
COPY --from=dependencies /opt/recon /opt/recon

FROM base AS spark
COPY requirements/spark.lock /requirements/
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --require-hashes --requirement /requirements/spark.lock
COPY --from=project /project /opt/recon
USER recon
VOLUME /tables
LABEL org.opencontainers.image.title="spark-sink" \
    org.opencontainers.image.description="The feed of a Ceramic node as Delta tables, by PySpark" \
    org.opencontainers.image.licenses="MIT OR Apache-2.0"
# Flight SQL of `serve --listen 0.0.0.0:5102`; metrics of `run --metrics 0.0.0.0:9102`
EXPOSE 5102 9102
ENTRYPOINT ["spark-sink"]
CMD ["run", "--url", "http://node:5101", "--tables", "/tables"]

FROM base AS node
COPY --from=project /project /opt/recon
USER recon
VOLUME /data
LABEL org.opencontainers.image.title="recon-node" \
    org.opencontainers.image.description="A Ceramic network node: Recon (CIP-124) over libp2p" \
    org.opencontainers.image.licenses="MIT OR Apache-2.0"
# libp2p, HTTP API
EXPOSE 4101 5101
# Inside a container the API has to listen on all of its interfaces; publish the port with care.
ENV RECON_NODE_DATA_DIR=/data RECON_NODE_API=0.0.0.0:5101
# The shell itself asks: to start Python for it would be most of what an idle node costs. A node that
# is busy may take seconds to answer.
HEALTHCHECK --interval=10s --timeout=10s --start-period=30s --retries=6 CMD ["bash", "-c", \
    "exec 3<>/dev/tcp/127.0.0.1/${RECON_NODE_API##*:} && printf 'GET /ceramic/liveness HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n' >&3 && read -r -t 9 _ status _ <&3 && [ \"$status\" = 200 ]"]
ENTRYPOINT ["recon-node"]
CMD ["run"]
