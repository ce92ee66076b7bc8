"""Plan many models on many GPUs: `python sweep_on_dask.py [SCHEDULER] > plans.csv`. Needs the packages distributed and pandas.

Without the address of a scheduler, the workers are processes of this machine.
"""

import sys

from distributed import Client, LocalCluster

from megatron_memory_estimator import TrainingJob, sweep
from megatron_memory_estimator.inputs.catalog import entries

MODELS = list(entries())[:40]
GPUS = ["H100", "H200", "B200", "B300", "GB200", "GB300"]
SIZES = [8, 32, 128, 512, 2048]


def jobs(models: list[str], gpus: list[str], sizes: list[int]) -> dict[str, TrainingJob]:
    """Every model on every number of every GPU; models that a number of GPUs cannot hold get a row that says so."""
    return {
        f"{model} on {size} {gpu}": TrainingJob.from_hf(model, size, gpu=gpu)
        for model in models
        for gpu in gpus
        for size in sizes
    }


def told(done: int, of: int) -> None:
    """Progress on standard error."""
    print(f"\r{done} of {of} planned", end="", file=sys.stderr)


if __name__ == "__main__":
    import pandas

    where = sys.argv[1] if len(sys.argv) > 1 else LocalCluster(threads_per_worker=1, dashboard_address=None)
    with Client(where) as client, client.get_executor() as executor:
        rows = sweep(jobs(MODELS, GPUS, SIZES), executor=executor, progress=told, top=3)
    pandas.DataFrame(rows).to_csv(sys.stdout, index=False)
