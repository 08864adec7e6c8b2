"""Code shared by several tests. Imported as ``helpers``: pyproject.toml puts ``tests`` on the path."""
