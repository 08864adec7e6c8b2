"""What is checked before a record goes on the board, and students as timm folders."""
