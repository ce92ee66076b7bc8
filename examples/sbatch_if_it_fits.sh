#!/usr/bin/env bash
# Queue a Slurm script only if its run fits the GPU:
#   GPU=H100 ./sbatch_if_it_fits.sh run.sh [options of sbatch ...]
# TIGHT=1 queues a run that is tight, or trains and cannot load its checkpoint, too.
set -u
if [ $# -eq 0 ]; then
    echo "usage: GPU=H100 $0 run.sh [options of sbatch ...]" >&2
    exit 2
fi
script=$1
shift
megatron-memory check "$script" --gpu "${GPU:-H100}"
code=$?
if [ "$code" -ne 0 ] && ! { [ "$code" -eq 4 ] && [ -n "${TIGHT:-}" ]; }; then
    echo "not queued: $script" >&2
    exit "$code"
fi
exec sbatch "$@" "$script"
