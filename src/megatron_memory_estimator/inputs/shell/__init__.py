"""Launch scripts, read without running anything: every way through a script is followed, and the launches are compared."""
