"""Small helpers that know nothing of images."""
