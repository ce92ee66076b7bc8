"""What a search looks through: axes with their values, points and pipelines, and which of them are legal."""
