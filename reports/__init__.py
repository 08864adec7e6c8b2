"""Leaderboards and reports: pure functions of records."""
