"""Nets registered with timm, and their pretrained weights."""
