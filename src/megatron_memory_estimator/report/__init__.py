"""Views of an estimate: a JSON document, text tables, the tree of tensors. The same numbers everywhere."""
