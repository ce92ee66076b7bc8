#!/bin/bash
# Runs the 8B model
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NUM_NODES=2
MASTER_ADDR=localhost
CHECKPOINT_PATH=$1   # <path>
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
    --master_addr $MASTER_ADDR
)
MODEL_ARGS=(
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192 --swiglu --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights --position-embedding-type rope --attention-dropout 0.0 --hidden-dropout 0.0 --vocab-size 128256 --bf16
)
TRAINING_ARGS=(
    --micro-batch-size 1 --global-batch-size 128 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer --lr 1.0e-4 # everything else
)
EVAL_AND_LOGGING_ARGS=(
    --log-interval 100
    --save "$CHECKPOINT_PATH"
    --split 949,50,1
)
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \
    ${MODEL_ARGS[@]} \
    ${TRAINING_ARGS[@]} \
    ${EVAL_AND_LOGGING_ARGS[@]}
