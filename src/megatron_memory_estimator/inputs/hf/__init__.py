"""Hugging Face configs: find one, read it, and map it to Megatron's names."""

from .load import load, load_bundled, load_named

__all__ = ["load", "load_bundled", "load_named"]
