"""Launch scripts, read without running anything.

The language is recursive: a word may hold commands, a command words, a number a variable. So the files that follow it (`commands`,
`compound`, `builtins`, `programs`, `expand`, `parameters`, `arithmetic` and what stands between them) are one circle, tied by
imports inside functions.
"""
