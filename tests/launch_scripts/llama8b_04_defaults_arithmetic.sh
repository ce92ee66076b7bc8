set -euo pipefail
: "${EXTRA:=}"
TP=${TP:-2}; PP=${PP:-2}
MBS=${MBS:-1}
NODES=${SLURM_NNODES:-2}
WORLD=$(( NODES * 8 ))
DP=$((WORLD / (TP * PP)))
GBS=$((MBS * DP * 32))
export CUDA_DEVICE_MAX_CONNECTIONS=1
srun -N $NODES --ntasks-per-node 8 --gpus-per-node=8 python pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192 --swiglu --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights --position-embedding-type rope --attention-dropout 0.0 --hidden-dropout 0.0 --vocab-size 128256 --bf16 --micro-batch-size $MBS --global-batch-size $GBS --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size ${PP} --sequence-parallel --use-distributed-optimizer --lr 1.0e-4
