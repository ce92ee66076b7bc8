"""Closed forms that others publish, under their published names.

`bridge` is Megatron-Bridge's theoretical memory API, `megatron_lm` Megatron-LM's report. Each module's docstring says
where its formula is wrong and by how much; `beside` evaluates both for a TrainingJob.
"""
