"""Spark's own web pages about a run: its batches, tasks and memory.

They show what was read and from where, and everyone who reaches them may end tasks. They have no
password. So they are off by default, and only reachable from this machine unless the address says
otherwise. Spark binds them to the address in SPARK_LOCAL_IP, which is only ours to choose where
nothing else depends on it: in local mode. On a cluster, it binds them to all addresses.
"""

from typing import Final

from spark_sink.errors import SinkError

LOOPBACK: Final = "127.0.0.1"
_ALL: Final = "0.0.0.0"


def ui_settings(address: str | None, *, local: bool, submitted: bool) -> dict[str, str]:
    """Return the settings of Spark for its pages.

    Args:
        address: HOST:PORT where they are to be; None: nowhere.
        local: whether Spark runs on this machine only.
        submitted: whether spark-submit started this process, and so Java.

    Raises:
        SinkError: Spark would put them elsewhere.
    """
    if address is None:
        return {"spark.ui.enabled": "false"}
    host, _, port = address.rpartition(":")
    if submitted:
        raise SinkError(
            "--spark-ui is for runs without spark-submit, which has started Spark's Java already: "
            "give spark-submit the options --conf spark.ui.enabled=true --conf "
            f"spark.ui.port={port}"
        )
    if not local and host != _ALL:
        raise SinkError(
            "with a cluster, Spark's pages are reachable at all addresses of this machine, "
            f"without a password: if that is all right, ask for it with --spark-ui {_ALL}:{port}"
        )
    return {"spark.ui.enabled": "true", "spark.ui.port": port}


def local_ip(address: str | None) -> str:
    """Return what SPARK_LOCAL_IP must be in local mode for pages at that address."""
    return LOOPBACK if address is None else address.rpartition(":")[0]
