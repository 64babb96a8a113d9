"""The command line. A command's module is imported when the command runs, so `--help` is quick.

In reading order:

    command            what commands share: answers of a node, tables, files
    config             `config` and `id`, and the settings as flags of commands
    run                `run`: a node
    testnet_commands   `testnet`: several nodes
    peers              `peers`
    status             `status`
    interest_commands  `interests`
    streams/           `stream`, `model`, `tangle`, `events`, `feed` and `key`
    dag/               `dag`
    drawing            pictures of graphs, and the options of the commands that draw
    anchor             `anchor`
    store_commands     `store`: the log of a stopped node
    snapshot           `snapshot`
    backup_commands    `backup` and `restore`
"""

from recon_node.base.program import no_garbage_collection, quietly_interrupted

with quietly_interrupted():
    from importlib import import_module
    from importlib.util import find_spec
    from typing import Final

    import click
    from click.shell_completion import CompletionItem

    from recon_node import __version__
    from recon_node.base.terminal import ProgramGroup

__all__ = ["import_command", "main"]

_COMMANDS: Final = {
    "anchor": ("anchor", "Anchor streams on a chain, and check anchors."),
    "backup": ("backup_commands", "Back up a node whole: log, keys and peers."),
    "config": ("config", "Show and check the settings, without running the node."),
    "dag": ("dag.dag_commands", "Push, pull and publish DAGs."),
    "events": ("streams.event_commands", "Add events to a node, and read them."),
    "feed": ("streams.event_commands", "Print the feed: every event, in the order of delivery."),
    "id": ("config", "Print a node's peer id, and create its identity."),
    "interests": ("interest_commands", "List and change the interests of a node."),
    "key": ("streams.key_commands", "Make keys that sign events."),
    "model": (
        "streams.model_commands",
        "List and create models, and write types of their documents.",
    ),
    "peers": ("peers", "List the peers that a node knows, or connect it to another."),
    "restore": ("backup_commands", "Restore a node from a backup."),
    "run": ("run", "Run a node until SIGTERM, SIGHUP or Ctrl-C."),
    "snapshot": ("snapshot", "Make snapshots in object stores, and sync from them."),
    "status": ("status", "Show the events of a node, and its latest syncs."),
    "store": ("store_commands", "Maintain the event log of a node: check, export, import."),
    "stream": ("streams.stream_commands", "List, draw, create, change and merge streams."),
    "tangle": ("streams.tangle_commands", "Threads of many authors: draw them, and reply."),
    "testnet": ("testnet_commands", "Run several nodes on this machine until Ctrl-C."),
}
"""The commands, each with its module and its line in the help."""
_WHOLE: Final = 1000
"""Characters of the first sentence of a command's help, all of which the help of its group has."""


def import_command(module: str, name: str) -> click.Command:
    """Import a command from a module of this package."""
    # What is imported stays: to look for garbage among it takes half a second.
    with no_garbage_collection(), quietly_interrupted():
        command: click.Command = getattr(import_module(f"recon_node.cli.{module}"), name)
    for each in (command, *getattr(command, "commands", {}).values()):
        each.short_help = each.get_short_help_str(_WHOLE)  # click cuts it after half a line
    return command


class _MainGroup(ProgramGroup):
    """The commands, imported when needed: `commands` has their names."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _ = _COMMANDS[cmd_name]
        return import_command(module, {"id": "identity"}.get(cmd_name, cmd_name))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete a command's name without importing the commands."""
        items = [
            CompletionItem(name, help=text)
            for name, (_, text) in _COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return items + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


def _version_message() -> str:
    """Say whether the native core is installed, too, but do not import it for that."""
    core = ", with the native core" if find_spec("recon_node_native") else ""
    return f"%(prog)s, version %(version)s{core}"


@click.group(
    cls=_MainGroup,
    commands={name: click.Command(name) for name in _COMMANDS},
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Try it: `recon-node testnet` starts three nodes on this machine. "
    "`recon-node COMMAND --help` explains a command.",
)
@click.version_option(__version__, prog_name="recon-node", message=_version_message())
def main() -> None:
    """A node of the Ceramic network.

    It keeps its set of events equal to its peers' sets (by Recon, over libp2p), stores them in a
    log on disk, and serves the log as a feed over HTTP.
    """
