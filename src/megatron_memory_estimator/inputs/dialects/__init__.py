"""Run files of other frameworks on Megatron: one file for each dialect, with what it is known by and how it is read.

A dialect is a `Dialect` named `DIALECT` in a module of this package, and a row in `table.py`. It says whether a run is its own
(`knows`) and what the run says (`read`): a model by name with settings by Megatron's names, or words of Megatron-LM, with the
framework's defaults filled in. What a file cannot say is asked for by name, all at once.
"""
