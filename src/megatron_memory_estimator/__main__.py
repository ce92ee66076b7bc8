"""`python -m megatron_memory_estimator` is the command `megatron-memory`."""

from .cli import main

if __name__ == "__main__":
    main()
