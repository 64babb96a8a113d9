"""The systemd units and the Kubernetes manifests, as far as no cluster and no init are needed."""

import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.settings import load_settings
from support.waiting import finished
from test_containers import check_command

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "config" / "systemd").glob("*.service"))
MANIFESTS = ROOT / "config" / "kubernetes"


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_a_unit_starts_a_command_that_exists(unit: Path) -> None:
    [command] = re.findall(r"^ExecStart=/opt/recon/bin/(.*)$", unit.read_text(), re.MULTILINE)
    words = shlex.split(command)
    assert words[0] == unit.stem
    check_command(words)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_systemd_accepts_a_unit_and_finds_it_confined(unit: Path, tmp_path: Path) -> None:
    installed = tmp_path / unit.name
    here = Path(sys.executable).parent
    installed.write_text(unit.read_text().replace("/opt/recon/bin", str(here)))
    for arguments in (
        ["verify", "--man=no", str(installed)],
        ["security", "--offline=true", "--threshold=20", str(installed)],
    ):
        done = finished(["systemd-analyze", *arguments])
        assert done.returncode == 0, done.stdout + done.stderr
        assert unit.name not in done.stderr


def resources() -> Iterator[dict[str, Any]]:
    for path in MANIFESTS.glob("*.yaml"):
        if path.name != "kustomization.yaml":
            yield from yaml.safe_load_all(path.read_text())


SETS = {
    resource["metadata"]["name"]: resource
    for resource in resources()
    if resource["kind"] == "StatefulSet"
}


@pytest.mark.parametrize("name", SETS)
def test_a_stateful_set_is_whole(name: str) -> None:
    """What the schemas cannot tell: its names refer to each other and to the image."""
    spec = SETS[name]["spec"]
    template = spec["template"]
    labels = template["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    [container] = template["spec"]["containers"]
    check_command([container["image"], *container["args"]])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        how = container.get(probe, {})
        target = how.get("httpGet") or how.get("tcpSocket")
        assert target is None or target["port"] in ports
    assert int(template["metadata"]["annotations"]["prometheus.io/port"]) in ports.values()
    volumes = {volume["name"] for volume in template["spec"]["volumes"]}
    volumes |= {claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    user = template["spec"]["securityContext"]["runAsUser"]
    assert f"--uid {user} " in (ROOT / "Dockerfile").read_text()


def test_services_lead_to_ports_of_the_pods() -> None:
    services = [resource for resource in resources() if resource["kind"] == "Service"]
    assert {stateful_set["spec"]["serviceName"] for stateful_set in SETS.values()} <= {
        service["metadata"]["name"] for service in services
    }
    for service in services:
        name = service["spec"]["selector"]["app.kubernetes.io/name"]
        [container] = SETS[name]["spec"]["template"]["spec"]["containers"]
        names = {port["name"] for port in container["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= names


def test_the_settings_of_the_config_map_can_be_used(tmp_path: Path) -> None:
    [config] = [resource for resource in resources() if resource["kind"] == "ConfigMap"]
    [(name, text)] = config["data"].items()
    (tmp_path / name).write_text(text)
    assert load_settings(tmp_path / name).network == "testnet-clay"


def test_the_kustomization_names_every_file_and_image() -> None:
    kustomization = yaml.safe_load((MANIFESTS / "kustomization.yaml").read_text())
    others = {path.name for path in MANIFESTS.glob("*.yaml")} - {"kustomization.yaml"}
    assert set(kustomization["resources"]) == others
    assert {image["name"] for image in kustomization["images"]} == set(SETS)
