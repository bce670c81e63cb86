"""A look inside: what attention kept, and why."""
