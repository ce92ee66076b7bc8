EP=8
PARALLEL=(
  "--tensor-model-parallel-size 2"
  "--expert-model-parallel-size $EP" "--expert-tensor-parallel-size 1"
  --sequence-parallel
)
MOE_ARGS=(
  --num-experts 32
  --moe-router-topk 4
  --moe-ffn-hidden-size 1024
  --moe-layer-freq '([0]*1+[1]*23)'
  --moe-grouped-gemm
  --moe-token-dispatcher-type alltoall
)
RECOMPUTE="--recompute-granularity selective --recompute-modules moe_act layernorm"
torchrun --nproc_per_node=8 --nnodes=2 pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 4096 --max-position-embeddings 4096 --swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope --attention-dropout 0 --hidden-dropout 0 --vocab-size 50304 --bf16 "${MOE_ARGS[@]}" ${PARALLEL[@]} ${RECOMPUTE} --micro-batch-size 2 --global-batch-size 256 --use-distributed-optimizer
