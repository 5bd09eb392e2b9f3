"""What trains and measures a network."""
