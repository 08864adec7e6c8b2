"""The one place that states the version; the package's metadata and checkpoints read it from here."""

__version__ = "0.1.0"
