#!/bin/bash
# GRPO with slime on two nodes: the trainer leaves the GPUs while the engine generates.
MODEL_ARGS=(
   --swiglu --num-layers 48 --hidden-size 2048 --ffn-hidden-size 6144 --num-attention-heads 32 --group-query-attention --num-query-groups 4
   --kv-channels 128 --qk-layernorm --normalization RMSNorm --norm-epsilon 1e-6 --use-rotary-position-embeddings --disable-bias-linear
   --untie-embeddings-and-output-weights --vocab-size 151936 --rotary-base 1000000
   --num-experts 128 --moe-router-topk 8 --moe-ffn-hidden-size 768 --moe-grouped-gemm --moe-token-dispatcher-type alltoall
   --moe-router-load-balancing-type none --moe-router-dtype fp32 --moe-permute-fusion
)
ray job submit -- python3 train.py \
   --actor-num-nodes "${NODES:-2}" --actor-num-gpus-per-node 8 --colocate \
   "${MODEL_ARGS[@]}" --hf-checkpoint /models/Qwen3-30B-A3B --ref-load /models/Qwen3-30B-A3B_torch_dist \
   --tensor-model-parallel-size 4 --sequence-parallel --context-parallel-size 2 --expert-model-parallel-size 8 \
   --expert-tensor-parallel-size 1 --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \
   --use-dynamic-batch-size --max-tokens-per-gpu 20480 --rollout-batch-size 128 --n-samples-per-prompt 8 --global-batch-size 1024 \
   --rollout-max-response-len 32768 --advantage-estimator grpo --use-kl-loss --kl-loss-coef 0.001 --entropy-coef 0.0 \
   --optimizer adam --attention-backend flash --attention-dropout 0.0 --hidden-dropout 0.0 \
   --rollout-num-gpus-per-engine 8 --sglang-mem-fraction-static 0.7
