#!/bin/bash
# In the style of alibaba/Pai-Megatron-Patch examples/*/run_mcore_*.sh: 25 words say everything.
set -e
PLACE=$1
if [ "$PLACE" = dsw ]; then
    export MASTER_ADDR=localhost MASTER_PORT=$((20000 + RANDOM % 1000)) NNODES=1 NODE_RANK=0
    GPUS_PER_NODE=8
elif [ "$PLACE" = dlc ]; then
    NNODES=${WORLD_SIZE}
    NODE_RANK=${RANK}
    GPUS_PER_NODE=${KUBERNETES_CONTAINER_RESOURCE_GPU:-8}
fi
SIZE=$2; BATCH=$3; GLOBAL=$4; LR=$5; MIN_LR=$6; LENGTH=$7; PAD=$8; PR=$9
TP=${10}; PP=${11}; CP=${12}; EP=${13}; SP=${14}; DO=${15}; FL=${16}; SFT=${17}; AC=${18}; OFFLOAD=${19}
EVERY=${20}; DATA=${21}; VALID=${22}; LOAD=${23}; TOKENS=${24}; OUT=${25}

case $SIZE in
7B) LAYERS=28; HIDDEN=3584; HEADS=28; FFN=18944; GROUPS_KV=4; EXTRA_VOCAB=421 ;;
14B) LAYERS=48; HIDDEN=5120; HEADS=40; FFN=13824; GROUPS_KV=8; EXTRA_VOCAB=421 ;;
esac

if [ "$AC" = full ]; then
    _check=$((LAYERS % PP))
    if [ $_check -ne 0 ]; then echo "layers do not divide"; exit 1; fi
    recompute="--recompute-method uniform --recompute-num-layers 1 --recompute-granularity full"
elif [ "$AC" = sel ]; then
    recompute="--recompute-activations"
elif [ "$AC" = none ]; then
    recompute=
fi
[ "$PR" = fp16 ] && precision="--fp16 --initial-loss-scale 65536" || precision="--bf16"
if [ "$DO" = true ] && [ "$TP" -ge 1 ]; then optimizer="--use-distributed-optimizer"; else optimizer=; fi
if [ "$SP" = true -a "$TP" -gt 1 ]; then sequence="--sequence-parallel"; else sequence=; fi
if [ "$OFFLOAD" != false ]; then offload="--optimizer-cpu-offload --optimizer-offload-fraction $OFFLOAD"; fi
steps=$(( TOKENS / GLOBAL / LENGTH ))
warm=$(echo "$steps * 1 / 100" | bc)
name="pretrain-${SIZE}-lr-${LR}-bs-${BATCH}-gbs-${GLOBAL}"
mkdir -p "$OUT/tensorboard/"
where="$OUT/tensorboard/${name}_$(date +%Y)"

words="--num-layers $LAYERS --hidden-size $HIDDEN --num-attention-heads $HEADS --ffn-hidden-size $FFN \
  --group-query-attention --num-query-groups $GROUPS_KV --seq-length $LENGTH --max-position-embeddings $PAD \
  --micro-batch-size $BATCH --global-batch-size $GLOBAL --lr $LR --min-lr $MIN_LR --train-iters $steps \
  --lr-warmup-iters $warm --save-interval $EVERY --tensorboard-dir $where --load $LOAD --data-path $DATA \
  --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP --context-parallel-size $CP"
run="torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --node_rank $NODE_RANK --master_addr $MASTER_ADDR
  --master_port $MASTER_PORT ../qwen2_5/pretrain_qwen.py $words $precision $optimizer $recompute $sequence $offload"
echo $run
eval $run
set +x
