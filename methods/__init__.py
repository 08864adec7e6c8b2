"""One file per method; each registers itself with :func:`bench.interface.registry.register_method`.

Modules here import torch and its like inside functions: listing and planning stay fast.
"""
