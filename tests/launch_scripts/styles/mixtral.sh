#!/bin/bash
# By the structure of NVIDIA/Megatron-LM examples/mixtral/train_mixtral_8x7b_distributed.sh.
MASTER_ADDR=${MASTER_ADDR:-"localhost"}
NNODES=${SLURM_NNODES:-"4"}
NODE_RANK=${RANK:-"0"}
DISTRIBUTED=( --nproc_per_node 8 --nnodes $NNODES --node_rank $NODE_RANK --master_addr $MASTER_ADDR )
MOE=( --num-experts 8 --moe-router-topk 2 --moe-router-load-balancing-type aux_loss --moe-grouped-gemm --moe-token-dispatcher-type alltoall )
PARALLEL=( --tensor-model-parallel-size 1 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 8 --expert-model-parallel-size 8 )
LOGGING=( --save $1 --load $1 --no-load-optim )
if [ -n "${WANDB_API_KEY}" ]; then
    LOGGING+=( --wandb-project ${WANDB_PROJECT:-"Mixtral"} )
fi
torchrun ${DISTRIBUTED[@]} pretrain_gpt.py --num-layers 32 --hidden-size 4096 --seq-length 4096 \
    --micro-batch-size 1 --global-batch-size 256 \
    ${MOE[@]} ${PARALLEL[@]} ${LOGGING[@]}
