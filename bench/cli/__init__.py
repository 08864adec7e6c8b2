"""The command line: parsing and printing."""

from bench.cli.main import main

__all__ = ["main"]
