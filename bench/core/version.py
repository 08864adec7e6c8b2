"""The version, here alone: the package's metadata and checkpoints take it from here."""

__version__ = "0.1.0"
