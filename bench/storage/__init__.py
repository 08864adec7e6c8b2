"""Files written atomically, locks, and the cache of artefacts."""
