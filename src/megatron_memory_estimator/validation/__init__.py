"""Measured runs and what this package says of them.

`runs.jsonl` holds one measured run per line (docs/how-to/validation.md has the schema); `replay` estimates them, `score` sums up,
`logs` reads Megatron's own memory lines.
"""
