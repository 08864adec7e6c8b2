"""Data sets: catalogue (`datasets`), download (`download`, `array_store`), splits (`splits`)."""
