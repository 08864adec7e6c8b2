"""Atomic files, locks, and the artefact cache."""
