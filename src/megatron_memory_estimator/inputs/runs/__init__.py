"""A whole run in a file or a text: a YAML run description, Megatron-LM arguments, or a launch script."""
