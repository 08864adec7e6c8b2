"""The version, which the package's metadata and checkpoints read from here."""

__version__ = "0.1.0"
