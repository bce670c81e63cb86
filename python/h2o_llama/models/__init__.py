"""Model files: by path, by name, from the hub."""
