"""The client alone, as config/client/pyproject.toml packages it: small, and complete."""

import os
import shlex
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

from support.waiting import finished

from recon_node.ipld.errors import INSTALL_ALL

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "config" / "client"

HEAVY = ("libp2p", "trio", "pyarrow", "numpy", "pydantic", "starlette", "multiformats", "dag_cbor")
ONLY_WITH_FULL = ("coincurve", "cryptography", "Crypto", "blake3")

LOADED = "import sys, recon_node.client; print(*{name.partition('.')[0] for name in sys.modules})"

# Imports all modules, as if only the client's dependencies were installed, and signs an event.
USE_ALL = f"""
import importlib, pkgutil, sys
for name in {(*HEAVY, *ONLY_WITH_FULL)!r}:
    sys.modules[name] = None
import recon_node
for module in pkgutil.walk_packages(recon_node.__path__, "recon_node."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        assert "pip install './config/client[full]'" in str(error), (module.name, error)
        print(module.name)

from recon_node.ceramic.auth.signature import verify_signature
from recon_node.ceramic.builder import init_event
from recon_node.client import METAMODEL, Key
from recon_node.ipld import MultibaseError, multibase
key = Key.generate()
verify_signature(init_event(key.private, METAMODEL, {{"title": "First"}}), key.did)
try:
    multibase.decode("pzzzz")  # proquint
except MultibaseError as error:
    print(error)
"""


def definition(path: Path) -> dict[str, Any]:
    return tomllib.loads((path / "pyproject.toml").read_text())


def packaged(target: Path) -> Path:
    """Copy what the wheel has, as its build does."""
    wheel = definition(PACKAGE)["tool"]["hatch"]["build"]["targets"]["wheel"]
    for source, name in wheel["force-include"].items():
        if (PACKAGE / source).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(PACKAGE / source, target / name, ignore=ignored)
        else:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(PACKAGE / source, target / name)
    return target


def run(path: Path, program: str) -> list[str]:
    done = finished(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(path)},
        cwd=path,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_what_an_import_of_the_client_loads():
    [loaded] = run(ROOT, LOADED)
    assert set(loaded.split()).isdisjoint((*HEAVY, *ONLY_WITH_FULL))


def test_the_packaged_modules_need_nothing_else(tmp_path: Path):
    path = packaged(tmp_path / "site")
    *incomplete, error = run(path, USE_ALL)
    assert incomplete == ["recon_node.ceramic.auth.ecdsa"]
    assert "multiformats: install the client" in error


def test_what_to_install_is_what_can_be_installed():
    """The client is not on PyPI: pip gets a directory, not a name that strangers may take."""
    [wanted] = [part for part in INSTALL_ALL.split("`") if part.startswith("pip install ")]
    assert shlex.split(wanted)[2:] == [f"./{PACKAGE.relative_to(ROOT)}[full]"]
    assert "full" in definition(PACKAGE)["project"]["optional-dependencies"]


def test_its_dependencies_are_some_of_the_node():
    client = definition(PACKAGE)["project"]
    needed = {*client["dependencies"], *client["optional-dependencies"]["full"]}
    assert needed <= set(definition(ROOT)["project"]["dependencies"])
    assert client["requires-python"] == definition(ROOT)["project"]["requires-python"]
