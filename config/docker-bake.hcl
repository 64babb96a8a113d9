# Both images, for amd64 and arm64:
#
#   VERSION=0.1.0 REVISION=$(git rev-parse HEAD) REGISTRY=ghcr.io/me/ \
#     docker buildx bake -f config/docker-bake.hcl --push
#
# For this machine only, into its Docker engine:
#
#   docker buildx bake -f config/docker-bake.hcl local
#
# Two platforms need a builder that can have them (`docker buildx create --use`) and, on a machine of
# one kind, QEMU for the other (`docker run --privileged tonistiigi/binfmt --install arm64`).

variable "VERSION" { default = "0.1.0.dev0" }
variable "REVISION" { default = "" }
variable "CREATED" { default = "" }  # RFC 3339
variable "SOURCE" { default = "" }   # the repository's URL
variable "REGISTRY" { default = "" } # with a slash at its end
variable "PYTHON" { default = "python:3.12-slim-bookworm" }

group "default" { targets = ["node", "spark"] }
group "local" { targets = ["node-local", "spark-local"] }

target "base" {
  context    = "."
  dockerfile = "Dockerfile"
  args       = { PYTHON = PYTHON, VERSION = VERSION }
  labels = {
    "org.opencontainers.image.version"  = VERSION
    "org.opencontainers.image.revision" = REVISION
    "org.opencontainers.image.created"  = CREATED
    "org.opencontainers.image.source"   = SOURCE
  }
}

target "platforms" {
  platforms = ["linux/amd64", "linux/arm64"]
  attest    = ["type=provenance,mode=max", "type=sbom"]
}

target "node-local" {
  inherits = ["base"]
  target   = "node"
  tags     = ["${REGISTRY}recon-node:${VERSION}", "${REGISTRY}recon-node:latest"]
}

target "spark-local" {
  inherits = ["base"]
  target   = "spark"
  tags     = ["${REGISTRY}spark-sink:${VERSION}", "${REGISTRY}spark-sink:latest"]
}

target "node" { inherits = ["node-local", "platforms"] }
target "spark" { inherits = ["spark-local", "platforms"] }
