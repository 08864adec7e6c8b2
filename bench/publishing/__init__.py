"""Checks before a record goes on the board, and export of students to timm folders."""
