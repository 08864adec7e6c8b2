"""One file per attack; each registers itself with :func:`bench.interface.registry.register_attack`."""
