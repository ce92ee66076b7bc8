"""What a run leaves behind about its memory: torch's memory snapshots, read safely and named in our words."""
