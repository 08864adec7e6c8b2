"""What several tests share. Imported as ``helpers``: pyproject.toml puts ``tests`` on the path."""
