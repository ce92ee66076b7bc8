from .run import Dialect, Reading
DIALECT = Dialect("NeMo-RL", "dialects/nemo_rl.md", lambda run: False, lambda run: Reading())
