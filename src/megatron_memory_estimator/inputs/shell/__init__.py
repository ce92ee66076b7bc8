"""Launch scripts, read without running anything."""
