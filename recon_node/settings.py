"""The node's settings: composed of what packages declare, read from a file, variables and flags.

A setting is a marked field of a package's dataclass (`recon_node.base.setting_types`). It has one
name everywhere: `data_dir` in the TOML file, `RECON_NODE_DATA_DIR` in the environment, `--data-dir`
on the command line. Later sources override earlier ones: defaults, file, environment, flags. Lists
are TOML arrays, or text with commas.

An unknown key in the file is refused. An unknown variable is only reported: a container platform
may set some of its own (a Kubernetes service named `recon-node` does).

    python -m recon_node.settings > config/recon-node.toml
"""

import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from recon_node.anchoring.settings import AnchorSettings
from recon_node.api.settings import ApiSettings
from recon_node.base.errors import reason_of
from recon_node.base.files import read_small
from recon_node.base.setting_types import (
    SETTINGS,
    DataDirSettings,
    Flag,
    OptionalPath,
    TextList,
    checked_by,
    declarations,
    short_path,
)
from recon_node.ceramic import Network, StreamId
from recon_node.chain import ChainSettings
from recon_node.logs import LogSettings
from recon_node.p2p import P2PSettings
from recon_node.snapshot.settings import SnapshotSettings
from recon_node.store import Interest, PolicySettings, StoreSettings, parse_interest
from recon_node.store.kept_interests import check_interest

ENV_PREFIX: Final = "RECON_NODE_"
_MAX_FILE: Final = 1024 * 1024
"""Bytes of a settings file."""
_EXPLAINED: Final = "config/recon-node.toml"
_OTHER_VARIABLES: Final = frozenset({"RECON_NODE_CONFIG", "RECON_NODE_KEY", "RECON_NODE_URL"})


class SettingsError(ValueError):
    """A setting that cannot be used. The message names it and its source, on one line."""


def _check_interests(texts: tuple[str, ...]) -> None:
    for text in texts:
        wanted = parse_interest(text)
        if isinstance(wanted, Interest):
            check_interest(wanted)


def _joined(value: object) -> object:
    """Join the values of a flag, each a list with commas; leave other values as they are."""
    if isinstance(value, tuple) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    return value


@dataclass(frozen=True, slots=True, config=SETTINGS)
class Settings(DataDirSettings):
    """The node: its data, its network, what it syncs."""

    network: Annotated[str, checked_by(Network.parse), Flag(metavar="NAME")] = "testnet-clay"
    """mainnet, testnet-clay, dev-unstable, inmemory, or local-NUMBER for a private network.

    A data directory belongs to the network that it was first used with.
    """
    interests: Annotated[
        TextList, checked_by(_check_interests), Flag(metavar="INTEREST", flag="interest")
    ] = ()
    """What to sync: a model's or a document's StreamID, or fields such as 'model=STREAM_ID
    controller=DID'. Without interests, the node syncs everything on its network.

    A model's StreamID stands for all its documents, a document's for that document alone:
      interests = ["kjzl6hvfrbw6c...", "model=kjzl6hvfrbw6c... controller=did:key:z6Mk..."]
    'model=k... shard=1/4' stands for the first quarter of a model's controllers.
    A document that the node does not have yet needs model=, controller= and stream=. For the models
    themselves, use "kh4q0ozorrgaq2mezktnrmdwleo1d". `recon-node interests add` adds more while the
    node runs; those set here can only be removed here.
    In the environment: RECON_NODE_INTERESTS="kjzl6hvfrbw6c...,model=k... controller=did:key:z..."
    """
    extra_interests: Annotated[
        TextList,
        BeforeValidator(_joined),
        checked_by(_check_interests),
        Flag(metavar="STREAM_ID,..."),
    ] = ()
    """More interests, by ceramic-one's name for them: models' StreamIDs, separated by commas."""
    peer_id_file: Annotated[OptionalPath, Flag(metavar="FILE")] = None
    """File to write the peer id to once the node listens, so that others can use it to bootstrap.

    Useful in containers. The file is replaced atomically.
    """
    p2p: P2PSettings = Field(default_factory=P2PSettings)
    api: ApiSettings = Field(default_factory=ApiSettings)
    store: StoreSettings = Field(default_factory=StoreSettings)
    policy: PolicySettings = Field(default_factory=PolicySettings)
    chain: ChainSettings = Field(default_factory=ChainSettings)
    anchor: AnchorSettings = Field(default_factory=AnchorSettings)
    snapshot: SnapshotSettings = Field(default_factory=SnapshotSettings)
    log: LogSettings = Field(default_factory=LogSettings)

    def wanted(self) -> list[Interest | StreamId]:
        """The interests; a StreamId is a stream whose model and controller are not named."""
        texts = (*self.interests, *self.extra_interests)
        return list(dict.fromkeys(map(parse_interest, texts)))


DECLARATIONS: Final = {declaration.name: declaration for declaration in declarations(Settings)}
"""All settings by their names."""


_GONE: Final = ("write_policy", "write_policy_timeout")
"""Settings of earlier versions which a node must not start without: it would accept more."""


class Given(NamedTuple):
    """A setting's value as a source has it, before it is checked."""

    value: object
    source: str
    """Where it comes from, for people: `node.toml: api`, `RECON_NODE_API` or `--api`."""


def given_settings(config: Path | None, flags: Mapping[str, Any] | None) -> dict[str, Given]:
    """Return what the file, the environment and the flags set, by name; the last source wins.

    Raises:
        SettingsError: the file cannot be read, or has an unknown setting; or the environment has a
            former one, see `_GONE`.
    """
    given: dict[str, Given] = {}
    for name, value in (_read_toml(config) if config else {}).items():
        given[name] = Given(value, f"{config}: {name}")
    for name in DECLARATIONS:
        if (text := os.environ.get(_variable(name))) is not None:
            given[name] = Given(text, _variable(name))
    if gone := [name for name in _GONE if os.environ.get(_variable(name))]:
        raise SettingsError("; ".join(f"{_variable(name)}: {_unknown(name)}" for name in gone))
    for name, value in (flags or {}).items():
        given[name] = Given(value, DECLARATIONS[name].flag)
    return given


def checked_settings(given: Mapping[str, Given]) -> Settings:
    """Make the settings from what `given_settings` found; what is not given has its default.

    Raises:
        SettingsError: a setting cannot be used; the message names every one of them.
    """
    nested: dict[str, Any] = {}
    faults: list[str] = []
    for name, (value, source) in given.items():
        if isinstance(value, bool) and not isinstance(DECLARATIONS[name].default, bool):
            # pydantic would take true for 1
            faults.append(f"{source}: {json.dumps(value)} is not a value for it, see {_EXPLAINED}")
            continue
        *packages, attribute = DECLARATIONS[name].path
        values = nested
        for package in packages:
            values = values.setdefault(package, {})
        values[attribute] = value
    try:
        checked = TypeAdapter(Settings).validate_python(nested)
    except ValidationError as error:
        faults += _explain(error, given)
    except UnicodeEncodeError:  # Python's text for bytes that are not UTF-8
        wrong = [source for value, source in given.values() if not _is_utf_8(value)]
        raise SettingsError(f"{', '.join(wrong)}: not text in UTF-8") from None
    if faults:
        raise SettingsError("; ".join(faults))
    return checked


def _is_utf_8(value: object) -> bool:
    texts = value if isinstance(value, tuple | list) else [value]
    try:
        "".join(map(str, texts)).encode()
    except UnicodeEncodeError:
        return False
    return True


def value_of(settings: Settings, name: str) -> Any:
    """Return the setting `name` of checked settings."""
    return reduce(getattr, DECLARATIONS[name].path, settings)


def unknown_variables() -> list[str]:
    """Environment variables that look like settings but are not, sorted."""
    known = {_variable(name) for name in DECLARATIONS} | _OTHER_VARIABLES
    return sorted(name for name in os.environ if name.startswith(ENV_PREFIX) and name not in known)


def _variable(name: str) -> str:
    return ENV_PREFIX + name.upper()


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(read_small(path, _MAX_FILE).decode())
    except OSError as error:
        raise SettingsError(f"{path}: {reason_of(error)}") from None
    except ValueError as error:  # not TOML, or not UTF-8
        raise SettingsError(f"{path}: not TOML: {error}") from None
    if unknown := [name for name in values if name not in DECLARATIONS]:
        raise SettingsError(f"{path}: " + "; ".join(map(_unknown, unknown)))
    return values


def _unknown(name: str) -> str:
    close = get_close_matches(name, DECLARATIONS, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"see {_EXPLAINED}"
    if name in _GONE:
        hint = "not any more: docs/upgrading.md says what there is instead"
    return f"no setting is named {name!r} ({hint})"


def _explain(error: ValidationError, given: Mapping[str, Given]) -> Iterator[str]:
    """Describe each problem, after the source that the value came from."""
    for problem in error.errors():
        setting = next(
            named
            for named in DECLARATIONS.values()
            if named.path == problem["loc"][: len(named.path)]
        )
        source = given[setting.name].source if setting.name in given else setting.name
        said = "Input should be true or false"
        if problem["type"] != "bool_parsing":
            said = problem["msg"].removeprefix("Value error, ")
        yield f"{source}: {said}"


_FILE_HEAD: Final = """\
# The settings of a node: recon-node run --config recon-node.toml
#
# Each line that starts with "#" without a space is a setting with its default; remove the "#" to
# change it. The environment (RECON_NODE_DATA_DIR, ...) overrides this file, and a flag (--data-dir,
# ...; `recon-node run --help` lists them) overrides both.
"""


def example_file() -> str:
    """Return a TOML file with every setting, its meaning and its default, all commented out."""
    parts = [_FILE_HEAD]
    section = ""
    for setting in DECLARATIONS.values():
        package: Any = Settings
        if len(setting.path) > 1:
            package = Settings.__pydantic_fields__[setting.path[0]].annotation  # type: ignore[attr-defined]
        title = (package.__doc__ or "").partition(":")[0].rstrip(".")
        if title != section:
            section = title
            parts.append(f"# --- {title} ".ljust(100, "-") + "\n")
        lines = setting.description.splitlines()
        comment = "".join(f"# {line}\n" for line in lines if line)
        parts.append(f"{comment}#{setting.name} = {toml_value(setting.default)}\n")
    return "\n".join(parts)


def toml_value(value: object) -> str:
    """Return a setting as it is written in a TOML file; an empty text for None."""
    match value:
        case Path():
            return _toml_text(short_path(value))
        case list() | tuple():
            return f"[{', '.join(map(toml_value, value))}]"
        case None | str():
            return _toml_text(value or "")
        case _:
            return json.dumps(value)


def _toml_text(text: str) -> str:
    """Quote a text; what does not print is escaped. (JSON has no escape for characters beyond
    U+FFFF, but two halves, which TOML does not take.)"""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    shown = "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped)
    return f'"{shown}"'


if __name__ == "__main__":
    print(example_file(), end="")
