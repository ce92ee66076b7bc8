"""The search for layouts: what is legal, what it takes in bytes and seconds, what is best."""
