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
nodes=()
before=
for word in "$@"; do # what sbatch is told wins over the script's own lines
    case "$before $word" in
    *" --nodes="*) nodes=(--set "SLURM_NNODES=${word#--nodes=}") ;;
    "--nodes "* | "-N "*) nodes=(--set "SLURM_NNODES=$word") ;;
    *" -N"[0-9]*) nodes=(--set "SLURM_NNODES=${word#-N}") ;;
    esac
    before=$word
done
megatron-memory check "$script" --gpu "${GPU:-H100}" ${nodes[@]+"${nodes[@]}"}
code=$?
if [ "$code" -ne 0 ] && ! { [ "$code" -eq 4 ] && [ -n "${TIGHT:-}" ]; }; then
    echo "not queued: $script" >&2
    exit "$code"
fi
exec sbatch "$@" "$script"
