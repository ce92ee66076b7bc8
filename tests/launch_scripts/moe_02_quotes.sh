NODES="2"
FREQ="([0]*1+[1]*$((24-1)))"
common="--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 4096 --max-position-embeddings 4096 --swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope --attention-dropout 0 --hidden-dropout 0 --vocab-size 50304 --bf16"
moe='--num-experts 32 --moe-router-topk 4 --moe-ffn-hidden-size 1024 --moe-grouped-gemm --moe-token-dispatcher-type alltoall'
srun --nodes=${NODES} --gres=gpu:8 --ntasks-per-node=1 \
  torchrun --nnodes ${NODES} --nproc_per_node 8 --rdzv_backend c10d \
  pretrain_gpt.py ${common} ${moe} --moe-layer-freq "${FREQ}" --recompute-granularity selective \
  --recompute-modules moe_act layernorm --micro-batch-size 2 --global-batch-size 256 \
  --tensor-model-parallel-size 2 --expert-tensor-parallel-size 1 --expert-model-parallel-size 8 \
  --sequence-parallel --use-distributed-optimizer
