"""Fuzzing of every reader: `scripts/fuzz.py` runs it for minutes, `tests/test_fuzz_seeds.py` for a moment."""
