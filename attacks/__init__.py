"""One file per attack; each registers itself with :func:`bench.registry.register_attack`."""
