"""Errors of commands: one clear line on standard error and an exit code."""

from __future__ import annotations

import click


class CommandError(click.ClickException):
    """A command that failed: exit code 1."""


class BadSettingsError(click.ClickException):
    """Settings that cannot be used: exit code 2, as for bad usage."""

    exit_code = 2
