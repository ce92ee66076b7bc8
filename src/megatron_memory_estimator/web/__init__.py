"""The page, and the servers of it."""
