"""Attacks, audits, and the checks of non-interference and sensitivity."""
