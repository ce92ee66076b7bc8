NODES=2
cat > job.sbatch <<EOF
#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nnodes=$NODES --nproc-per-node=8 pretrain_gpt.py \
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192 --swiglu --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights --position-embedding-type rope --attention-dropout 0.0 --hidden-dropout 0.0 --vocab-size 128256 --bf16 \
    --micro-batch-size 1 --global-batch-size 128 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer --lr 1.0e-4
EOF
sbatch job.sbatch
