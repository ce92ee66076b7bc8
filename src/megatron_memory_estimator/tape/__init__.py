"""The language of declarations, and its player: tensors, operations, lifetimes."""
