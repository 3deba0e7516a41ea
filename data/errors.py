"""Mistakes that a user can mend: shown as one line without a traceback, exit code 2."""

from __future__ import annotations


class UserError(ValueError):
    """One line: what is wrong, with the value, where, and what to do."""


class InputError(UserError):
    """An input that cannot be used, found before any work started."""


class ConfigError(UserError):
    """A setting that cannot work, found before any work started."""
