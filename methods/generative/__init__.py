"""Private generators; students learn from their images."""
