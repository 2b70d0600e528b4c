"""Keeping clients' slots open: gate, forwarding, configuration, daemon and command line."""

__version__ = "0.1.0"
