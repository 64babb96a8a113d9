# A node, and the Spark pipeline behind it:
#
#   docker build --target node  -t recon-node .
#   docker build --target spark -t spark-sink .
FROM python:3.12-slim-bookworm AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev libgmp-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
RUN python -m venv /opt/recon
COPY pyproject.toml requirements.lock README.md LICENSE LICENSE-MIT LICENSE-APACHE ./
COPY recon_node recon_node
COPY spark_sink spark_sink
RUN /opt/recon/bin/pip install --no-cache-dir --constraint requirements.lock .

FROM build AS build-spark
RUN /opt/recon/bin/pip install --no-cache-dir --constraint requirements.lock '.[spark]'

FROM python:3.12-slim-bookworm AS base
RUN apt-get update \
    && apt-get install -y --no-install-recommends libgmp10 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 recon \
    && install -d -o recon /data /tables /bootstrap
ENV PATH=/opt/recon/bin:$PATH PYTHONUNBUFFERED=1
USER recon

FROM base AS spark
COPY --from=build-spark /opt/recon /opt/recon
VOLUME /tables
ENTRYPOINT ["spark-sink"]
CMD ["run", "--url", "http://node:5101", "--tables", "/tables"]

FROM base AS node
COPY --from=build /opt/recon /opt/recon
VOLUME /data
# libp2p, HTTP API
EXPOSE 4101 5101
# Inside a container the API has to listen on all of its interfaces; publish the port with care.
ENV RECON_NODE_DATA_DIR=/data RECON_NODE_API=0.0.0.0:5101
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:5101/ceramic/liveness', timeout=2)"]
ENTRYPOINT ["recon-node"]
CMD ["run"]
