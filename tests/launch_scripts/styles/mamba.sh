#!/bin/bash
# By the structure of NVIDIA/Megatron-LM examples/mamba/train.sh.
MODEL_SCALE="8B"
case "${MODEL_SCALE}" in
    "800M") TP=1; LAYERS=48; HIDDEN=1024; HEADS=16; BATCH=32 ;;
    "8B") TP=4; LAYERS=56; HIDDEN=4096; HEADS=32; BATCH=8 ;;
    *) echo "Invalid version specified"; exit 1 ;;
esac
DATA=$1
export NCCL_IB_SL=1
LENGTH=4096
SAMPLES=73242188
WARMUP=50000
DECAY=$((SAMPLES - WARMUP))
options=" --tensor-model-parallel-size ${TP} --sequence-parallel --pipeline-model-parallel-size 1 --num-layers ${LAYERS} \
  --hidden-size ${HIDDEN} --num-attention-heads ${HEADS} --group-query-attention --num-query-groups 8 --hybrid-attention-ratio 0.08 \
  --seq-length ${LENGTH} --max-position-embeddings ${LENGTH} --train-samples ${SAMPLES} --lr-decay-samples ${DECAY} \
  --data-path ${DATA} --micro-batch-size 4 --global-batch-size ${BATCH} --bf16 --spec megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec"
torchrun --nproc_per_node 8 ../../pretrain_mamba.py ${options}
