"""Attacks, audits, and the non-interference and sensitivity checks."""
