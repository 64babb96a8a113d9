"""`recon-node run`."""

import os
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import structlog
import trio

from recon_node.base.program import allow_files
from recon_node.base.terminal import CommandError
from recon_node.base.timing import TracesError, traces
from recon_node.cli.config import SettingsCommand, read_settings
from recon_node.logs import configure_logging
from recon_node.node import fatal_messages, run_node
from recon_node.settings import unknown_variables
from recon_node.store.db.saved_keys import SAVING

SHUTDOWN_LIMIT: Final = 4.5
"""Seconds after which an orderly shutdown is cut short. What was acknowledged is on disk."""


FILES: Final = 8192
"""Files and connections that the node may have open, if the system allows that; a usual soft limit
is 1,024, which are fewer than the connections that the API takes."""
FEWEST_FILES: Final = 64
"""With fewer, a node cannot start: it has 30 open before anybody connects."""

SAVING_LIMIT: Final = 120.0
"""Further seconds for saving the keys."""


@click.command(cls=SettingsCommand, all_flags=True)
@click.option("--watch-stdin", is_flag=True, hidden=True, help="Stop when standard input closes.")
def run(config: Path | None, watch_stdin: bool, **flags: Any) -> None:
    """Run a node until SIGTERM, SIGHUP or Ctrl-C.

    Settings come from the TOML file, from the environment (RECON_NODE_DATA_DIR, ...) and from
    flags; flags override the environment, which overrides the file. The file has more settings than
    there are flags.

    \b
    Examples:
      recon-node run
      recon-node run --network local-7 --data-dir /tmp/a --api 127.0.0.1:0 \\
        --listen /ip4/127.0.0.1/tcp/4201
      recon-node run --interest kjzl6hvfrbw6c... --interest 'model=k... controller=did:key:z...'
      recon-node run --config /etc/recon-node.toml
    """
    settings = read_settings(config, flags)
    configure_logging(settings.log.format, settings.log.level)
    logger = structlog.get_logger("recon_node")
    for name in unknown_variables():
        logger.warning("An environment variable is not a setting", name=name)
    os.umask(0o077)  # what the node writes is for its user alone
    files = allow_files(FILES)
    if files < FEWEST_FILES:
        raise CommandError(
            f"only {files} files may be open, and a node needs {FEWEST_FILES}, and more for peers "
            "and clients: raise the limit (`ulimit -n`, LimitNOFILE of a systemd unit)"
        )
    watchdog = threading.Timer(SHUTDOWN_LIMIT, _give_up)
    watchdog.daemon = True
    try:
        with traces("recon-node", on=settings.log.traces):
            run_it = partial(run_node, settings, watch_stdin=watch_stdin)
            trio.run(partial(run_it, on_stopping=watchdog.start))
    except TracesError as error:
        raise CommandError(str(error)) from None
    except BaseException as error:
        messages = fatal_messages(error)
        if messages is None:
            logger.critical("The node stopped because of a bug", exc_info=error)
            raise CommandError("internal error: see the log above for details") from None
        raise CommandError("; ".join(messages)) from None
    finally:
        watchdog.cancel()


def _give_up() -> None:
    """End the process at once, because an orderly shutdown takes too long.

    The keys are still saved: to write those of a large log takes longer, and saves the next start
    ten times as much.
    """
    deadline = time.monotonic() + SAVING_LIMIT
    while SAVING.is_set() and time.monotonic() < deadline:
        time.sleep(0.1)
    sys.stderr.write(
        f"recon-node: shutdown takes more than {SHUTDOWN_LIMIT} seconds; closing now. "
        "Every acknowledged event is on disk\n"
    )
    sys.stderr.flush()
    os._exit(1)
