"""Hugging Face configs: find one, read it, and map it to Megatron's names."""

from .load import load

__all__ = ["load"]
