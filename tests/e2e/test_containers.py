"""The Dockerfile and the compose file, as far as they can be checked without an engine."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import yaml
from click import Command, Group

from recon_node.cli import main as recon_node
from recon_node.settings import Settings
from spark_sink.cli import main as spark_sink

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((ROOT / "config" / "docker-compose.yml").read_text())
PROGRAMS = {"recon-node": recon_node, "spark-sink": spark_sink}


def check_command(words: list[str]) -> None:
    """Raise unless the program knows the subcommand and each of its options."""
    command: Command = PROGRAMS[words[0]]
    assert isinstance(command, Group)
    command = command.commands[words[1]]
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in words[2:] if word.startswith("--")} <= known


def test_the_images_copy_only_what_exists() -> None:
    for sources in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE):
        for source in sources.split():
            assert (ROOT / source).exists(), source


def test_the_images_start_commands_that_exist() -> None:
    entry_points = re.findall(r'^ENTRYPOINT \["(.+)"\]\nCMD \[(.+)\]$', DOCKERFILE, re.MULTILINE)
    assert len(entry_points) == 2
    for program, arguments in entry_points:
        check_command([program, *re.findall(r'"(.*?)"', arguments)])


def test_the_testnet_starts_commands_that_exist() -> None:
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE, re.MULTILINE))
    for service in COMPOSE["services"].values():
        assert service["build"]["target"] in stages
        if "entrypoint" in service:
            for command in service["command"][0].split(" && "):
                words = shlex.split(re.sub(r">.*", "", command.removeprefix("exec ")))
                check_command(words)
        elif "command" in service:
            check_command(["spark-sink", *service["command"]])


def test_the_variables_are_settings() -> None:
    variables = re.findall(r"RECON_NODE_(\w+)=", DOCKERFILE)
    for service in COMPOSE["services"].values():
        variables += [name.removeprefix("RECON_NODE_") for name in service.get("environment", {})]
    assert variables
    assert {name.lower() for name in variables} <= set(Settings.model_fields)


def test_volumes_are_declared_and_ports_stay_on_this_machine() -> None:
    for service in COMPOSE["services"].values():
        for volume in service.get("volumes", []):
            assert volume.split(":")[0] in COMPOSE["volumes"]
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
