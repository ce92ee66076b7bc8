"""Many layouts at once: the engine's declarations evaluated on arrays."""
