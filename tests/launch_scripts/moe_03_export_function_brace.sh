export NNODES=2 GPUS_PER_NODE=8
export WORLD_SIZE=$((GPUS_PER_NODE * NNODES))
{
  TOPK=4
  EXPERTS=32
}
ARGS="--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 4096 --max-position-embeddings 4096 --swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope --attention-dropout 0 --hidden-dropout 0 --vocab-size 50304 --bf16"
ARGS="$ARGS --num-experts $EXPERTS --moe-router-topk $TOPK --moe-ffn-hidden-size 1024"
ARGS+=" --moe-layer-freq ([0]*1+[1]*23) --moe-grouped-gemm --moe-token-dispatcher-type alltoall"
ARGS="${ARGS} --recompute-granularity selective --recompute-modules moe_act layernorm"
python pretrain_gpt.py $ARGS --micro-batch-size 2 --global-batch-size 256 --tensor-model-parallel-size 2 --expert-tensor-parallel-size 1 --expert-model-parallel-size 8 --sequence-parallel --use-distributed-optimizer
