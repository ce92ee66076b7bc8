#!/bin/bash
# A network beside the script, a loop that reads the caller's options, a launch in a function.
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
while [[ $# -gt 0 ]]; do
    case $1 in
    --layers) LAYERS=$2; shift 2 ;;
    --nodes=*) NODES=${1#*=}; shift ;;
    *) REST+=("$1"); shift ;;
    esac
done
source "$HERE/conf/network.sh"
start() {
    [ -d /nowhere ] && return 1
    torchrun --nproc_per_node 8 --nnodes ${NODES:-1} pretrain_gpt.py "${NETWORK[@]}" --micro-batch-size 2 "$@"
}
start "${REST[@]}"
