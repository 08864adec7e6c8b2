"""Importing this module registers all nets of this project with timm."""

from bench.models.registration import register_all

register_all()
