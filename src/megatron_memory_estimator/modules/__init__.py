"""One file per Megatron module: its parameters, the tensors that it keeps, and its scratch.

Each function is a generator that yields `Param`s in Megatron's registration order and `Op`s in execution order.
`layers.LAYERS` maps the kind of a layer to its modules; a new module is one file and one entry there.
"""
