"""Build the API reference from the docstrings: `python config/reference.py DIRECTORY`.

The tool is pdoc: it needs no configuration or source files of its own, and takes a few seconds.
A page is the face of a package (its `__all__`), or a module of a package without a face.
"""

import sys
import warnings
from pathlib import Path
from typing import Final

PAGES: Final = (
    "recon_node.ipld",
    "recon_node.ceramic",
    "recon_node.client",
    "recon_node.ceramic.builder",
    "recon_node.recon",
    "recon_node.streams",
    "recon_node.streams.picture",
    "recon_node.tangles.tangle",
    "recon_node.tangles.classic_feed",
    "recon_node.tangles.pictures",
    "recon_node.draw.layout",
    "recon_node.draw.text",
    "recon_node.draw.svg",
    "recon_node.verification",
    "recon_node.store",
    "recon_node.store.maintenance",
    "recon_node.chain",
    "recon_node.p2p",
    "recon_node.dag",
    "recon_node.dag.protocol.dag_operations",
    "recon_node.dag.protocol.replica",
    "recon_node.dag.protocol.shards",
    "recon_node.dag.protocol.publishing",
    "recon_node.dag.protocol.ucan",
    "recon_node.testnet",
    "spark_sink",
    "spark_sink.schema",
    "spark_sink.source.data_source",
)


def build(target: Path) -> None:
    """Write the reference as HTML pages below `target`."""
    import pdoc
    from pdoc import render

    render.configure(docformat="google", show_source=False)
    with warnings.catch_warnings():
        # Where pdoc cannot resolve an annotation, it shows it as it is written.
        warnings.simplefilter("ignore", UserWarning)
        pdoc.pdoc(*PAGES, output_directory=target)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
    print(f"The API reference is at {Path(sys.argv[1]) / 'index.html'}")
