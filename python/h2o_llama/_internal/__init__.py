"""What the rest of the package shares: not for users."""
