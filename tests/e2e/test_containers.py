"""The Dockerfile and the compose file, as far as they can be checked without an engine."""

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import yaml
from click import Context, Group

from recon_node.cli import main as recon_node
from recon_node.settings import DECLARATIONS
from recon_node.testnet import Testnet
from spark_sink.cli import main as spark_sink
from spark_sink.run.memory import NEEDED_BYTES

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
UNFOLDED = re.sub(r"\\\n\s*", "", DOCKERFILE)
COMPOSE = yaml.safe_load((ROOT / "config" / "docker-compose.yml").read_text())
PROGRAMS: dict[str, Group] = {"recon-node": recon_node, "spark-sink": spark_sink}


def check_command(words: list[str]) -> None:
    """Raise unless the program knows the subcommand and each of its options."""
    program = PROGRAMS[words[0]]
    context = Context(program)
    command = program.get_command(context, words[1])
    known = {option for parameter in command.get_params(context) for option in parameter.opts}
    assert {word for word in words[2:] if word.startswith("--")} <= known


def test_the_images_copy_only_what_exists() -> None:
    for sources in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE):
        for source in sources.split():
            assert (ROOT / source).exists(), source


def locked(file: Path) -> dict[str, tuple[str, ...]]:
    """The requirements of a lock file, each with its hashes."""
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    requirements = "\n".join(lines).replace(" \\\n    ", " ").splitlines()
    return {
        name: tuple(sorted(hashes)) for name, *hashes in (r.split(" --hash=") for r in requirements)
    }


def test_all_locks_name_the_same_files() -> None:
    everything = locked(ROOT / "requirements.lock")
    node, spark = (locked(ROOT / "requirements" / f"{name}.lock") for name in ("node", "spark"))
    assert node.items() <= spark.items() <= everything.items()
    for requirements in (everything, locked(ROOT / "requirements" / "build.lock")):
        assert all(hashes for hashes in requirements.values())


def test_the_images_start_commands_that_exist() -> None:
    entry_points = re.findall(r'^ENTRYPOINT \["(.+)"\]\nCMD \[(.+)\]$', DOCKERFILE, re.MULTILINE)
    assert len(entry_points) == 2
    for program, arguments in entry_points:
        check_command([program, *re.findall(r'"(.*?)"', arguments)])


def test_the_testnet_starts_commands_that_exist() -> None:
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE, re.MULTILINE))
    for service in COMPOSE["services"].values():
        if service["image"] == "recon-node" and "command" in service:
            [command] = re.findall(r"^exec (.*)$", service["command"][0], re.MULTILINE)
            check_command(shlex.split(command))
        elif service["image"] == "spark-sink":
            check_command(["spark-sink", *service["command"]])
        # Compose would try to pull an image of ours that a service does not build itself.
        if "/" in service["image"]:
            assert ":" in service["image"], "a version"
        else:
            assert service["build"]["target"] in stages


def test_a_profile_starts_all_that_it_needs() -> None:
    services = COMPOSE["services"]
    for service in services.values():
        for needed in service.get("depends_on", []):
            assert set(service["profiles"]) <= set(services[needed]["profiles"])
    profiles = {profile for service in services.values() for profile in service["profiles"]}
    assert profiles == {"testnet", "pipeline", "observability", "chain"}


def test_any_number_of_nodes_can_join() -> None:
    """Nothing that the containers of a scaled service cannot share has a fixed name."""
    node = COMPOSE["services"]["node"]
    assert all(volume.endswith(":ro") for volume in node["volumes"])
    [port] = node["ports"]
    first, last = map(int, re.findall(r"(\d+)-(\d+):", port)[0])
    assert last - first >= 40
    assert not any("container_name" in service for service in COMPOSE["services"].values())


def test_a_change_of_the_source_installs_no_dependency_again() -> None:
    """In each stage, all that pip takes from an index is installed before the source comes."""
    for stage in re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]:
        _, copied, rest = stage.partition("COPY recon_node")
        if copied:
            assert re.findall(r"pip install (.*)", rest) == [
                "--no-cache-dir --no-deps --no-build-isolation --prefix /project ."
            ]


def test_the_pipeline_may_take_the_memory_that_it_needs() -> None:
    assert COMPOSE["services"]["pipeline"]["mem_limit"] == f"{NEEDED_BYTES // 1024**3}g"


def check_health(port: int | str) -> int:
    """The exit code of the image's health check of a node with its API at this port."""
    [command] = re.findall(r"^HEALTHCHECK .*? CMD (\[.*?\])$", UNFOLDED, re.MULTILINE)
    api = {**os.environ, "RECON_NODE_API": f"0.0.0.0:{port}"}
    return subprocess.run(json.loads(command), env=api, capture_output=True, check=False).returncode


def test_the_health_check_asks_the_node_without_python(tmp_path: Path) -> None:
    peer_id_file = tmp_path / "peer-id"
    with Testnet(nodes=1, flags=["--peer-id-file", str(peer_id_file)]) as net:
        [node] = net.nodes
        port = node.api_url.rpartition(":")[2]
        assert check_health(port) == 0
        assert peer_id_file.read_text() == f"{node.peer_id}\n"
        assert [path for path in tmp_path.iterdir() if path != peer_id_file] == []
        node.stop()
        assert check_health(port) != 0


def test_the_variables_are_settings() -> None:
    variables = re.findall(r"RECON_NODE_(\w+)=", DOCKERFILE)
    for service in COMPOSE["services"].values():
        variables += [
            name.removeprefix("RECON_NODE_")
            for name in service.get("environment", {})
            if not name.startswith("GF_")  # Grafana's
        ]
    assert variables
    assert {name.lower() for name in variables} <= set(DECLARATIONS)


def test_volumes_are_declared_and_ports_stay_on_this_machine() -> None:
    for service in COMPOSE["services"].values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (ROOT / "config" / source).is_dir()
                assert volume.endswith(":ro")
            else:
                assert source in COMPOSE["volumes"]
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
