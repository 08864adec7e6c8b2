"""Publication of records on the board, with all checks, and export of students to timm folders."""
