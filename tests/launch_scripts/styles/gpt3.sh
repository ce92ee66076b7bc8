#!/bin/bash
# By the structure of NVIDIA/Megatron-LM examples/gpt3/train_gpt3_175b_distributed.sh.
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NUM_NODES=${NUM_NODES:-1}
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
CHECKPOINT_PATH=$1 #<where to save>
TENSORBOARD=$2 #<where to log>
WORDS=( --nproc_per_node $GPUS_PER_NODE --nnodes $NUM_NODES --master_addr ${MASTER_ADDR:-localhost} )
MODEL=(
    --num-layers 96
    --hidden-size 12288
    --num-attention-heads 96
    --seq-length 2048
    --max-position-embeddings 2048
    --attention-backend auto # flash, or what there is
)
TRAIN=( --micro-batch-size 1 --global-batch-size 1536 --rampup-batch-size 16 16 5859375 --fp16 )
PARALLEL=(
	--tensor-model-parallel-size 8
	--pipeline-model-parallel-size 16
)
torchrun ${WORDS[@]} pretrain_gpt.py ${MODEL[@]} ${TRAIN[@]} ${PARALLEL[@]} --save $CHECKPOINT_PATH --tensorboard-dir $TENSORBOARD
