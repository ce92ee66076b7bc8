#!/bin/bash
# By the structure of NVIDIA/Megatron-LM examples/llama/train_llama3_8b_h100_fp8.sh.
CHECKPOINT=${1:-"checkpoints/llama3_8b"}
TOKENIZER=${3:-"MOCK"}
DATA=${4:-"MOCK"}
mkdir -p "$(dirname "$CHECKPOINT")"
TP_SIZE=1; CP_SIZE=1; PP_SIZE=1; LENGTH=8192; DTYPE="fp8"
DISTRIBUTED=( --nproc_per_node 8 --nnodes ${NNODES:-1} --node_rank ${NODE_RANK:-0} )
MODEL=( --use-mcore-models --num-layers 32 --hidden-size 4096 --seq-length $LENGTH --tensor-model-parallel-size $TP_SIZE --context-parallel-size $CP_SIZE )
FP8=()
if [[ "$DTYPE" == "fp8" ]]; then
    FP8+=( "--fp8-format hybrid" "--fp8-amax-history-len 1024" )
fi
DATA_ARGS=()
if [[ "$TOKENIZER" == "MOCK" ]] || [[ -z "$TOKENIZER" ]]; then
    DATA_ARGS+=( "--mock-data" "--tokenizer-type NullTokenizer" "--vocab-size 128256" )
else
    DATA_ARGS+=( "--data-path $DATA" "--tokenizer-model $TOKENIZER" )
fi
if [ ! -f pretrain_gpt.py ]; then
    echo "Error: start it in the folder of pretrain_gpt.py"
    exit 1
fi
torchrun ${DISTRIBUTED[@]} pretrain_gpt.py ${MODEL[@]} --micro-batch-size 1 --global-batch-size 128 ${FP8[@]} ${DATA_ARGS[@]}
set +x
