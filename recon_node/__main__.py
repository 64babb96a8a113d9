"""`python -m recon_node`: the same as the command `recon-node`."""

from recon_node.cli import main

main(prog_name="recon-node")
