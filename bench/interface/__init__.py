"""What a plug-in imports: methods, attacks, registries."""
