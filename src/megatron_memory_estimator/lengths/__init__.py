"""Sample lengths and the microbatches that frameworks make of them under a bound of tokens."""
