"""Attacks on released students and releases, and their figures."""
