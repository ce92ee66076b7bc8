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
said=() # what sbatch is told of nodes, tasks and GPUs wins over the script's own lines
before=
for word in "$@"; do
    case "$before $word" in
    *" --nodes="* | *" --ntasks="* | *" --ntasks-per-node="* | *" --gpus-per-node="*) name=${word%%=*} value=${word#*=} ;;
    "--nodes "* | "--ntasks "* | "--ntasks-per-node "* | "--gpus-per-node "* | "-N "* | "-n "*) name=$before value=$word ;;
    *) name= ;;
    esac
    before=$word
    case $name in
    --nodes | -N) said+=(--set "SLURM_NNODES=$value") ;;
    --ntasks | -n) said+=(--set "SLURM_NTASKS=$value") ;;
    --ntasks-per-node) said+=(--set "SLURM_NTASKS_PER_NODE=$value") ;;
    --gpus-per-node) said+=(--set "SLURM_GPUS_PER_NODE=$value") ;;
    esac
done
megatron-memory check "$script" --gpu "${GPU:-H100}" ${said[@]+"${said[@]}"}
code=$?
if [ "$code" -ne 0 ] && ! { [ "$code" -eq 4 ] && [ -n "${TIGHT:-}" ]; }; then
    echo "not queued: $script" >&2
    exit "$code"
fi
exec sbatch "$@" "$script"
