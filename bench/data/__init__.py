"""Data sets: the catalogue (`datasets`), decoders of its files, users' own data (`own_data`) and splits (`splits`)."""
