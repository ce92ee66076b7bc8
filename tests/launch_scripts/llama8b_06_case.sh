MODEL_SIZE=8b
case "$MODEL_SIZE" in
  1b) LAYERS=16; HIDDEN=2048; FFN=8192 ;;
  8b|8B)
    LAYERS=32
    HIDDEN=4096
    FFN=14336
    ;;
  *) echo "unknown"; exit 1 ;;
esac
ARGS=(--num-layers $LAYERS --hidden-size $HIDDEN --ffn-hidden-size $FFN)
ARGS+=( --num-attention-heads 32 --group-query-attention --num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192 --swiglu --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights --position-embedding-type rope --attention-dropout 0.0 --hidden-dropout 0.0 --vocab-size 128256 --bf16)
ARGS+=(--micro-batch-size 1 --global-batch-size 128 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer --lr 1.0e-4)
export CUDA_DEVICE_MAX_CONNECTIONS=1
python -m torch.distributed.launch --nproc-per-node=8 --nnodes=2 pretrain_gpt.py "${ARGS[@]}"
