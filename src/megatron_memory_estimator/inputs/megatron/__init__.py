"""Megatron-LM arguments, from wherever users keep them to a TrainingJob."""
