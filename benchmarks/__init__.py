"""Benchmarks: each module is run as `python -m benchmarks.NAME [--json FILE]`.

They print a table for people and, with `--json`, write a list of rows for machines. Peers are
measured in the same run: on a shared machine only ratios mean something.
"""
