"""What the codec makes of K and V."""
