#!/bin/bash
#SBATCH --account=project
#SBATCH --nodes=2 --ntasks-per-node=8 --exclusive
#SBATCH --time=04:00:00
export CUDA_DEVICE_MAX_CONNECTIONS=1
DIR=`pwd`
DATETIME=$(date +'date_%y-%m-%d_time_%H-%M-%S')
mkdir -p $DIR/logs
options=" \
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192 --swiglu --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights --position-embedding-type rope --attention-dropout 0.0 --hidden-dropout 0.0 --vocab-size 128256 --bf16 \
    --micro-batch-size 1 --global-batch-size 128 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer --lr 1.0e-4 \
    --tensorboard-dir ${DIR}/logs/${DATETIME} "
run_cmd="cd $DIR; python -u ${DIR}/pretrain_gpt.py ${options}"
srun -l --container-image "image" --output=$DIR/logs/%x.log sh -c "${run_cmd}"
set +x
