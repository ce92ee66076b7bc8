TP=2
SP=true
DO=true
PR=bf16
if [ $SP = true ] && [ $TP -gt 1 ]; then
    sp_options=" --sequence-parallel"
elif [ $SP = false ]; then
    sp_options=" "
fi
if [[ "$DO" == "true" ]]; then do_options="--use-distributed-optimizer"; else do_options=""; fi
if [ ! -d /checkpoints ]; then
    mkdir -p /checkpoints
fi
if [ -z "${VPP:-}" ]; then vp_options=""; else vp_options="--num-virtual-stages-per-pipeline-rank $VPP"; fi
if [ $PR = fp16 ]; then pr_options="--fp16"; elif [ $PR = bf16 ]; then pr_options="--bf16"; fi
megatron_options="--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192 --swiglu --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights --position-embedding-type rope --attention-dropout 0.0 --hidden-dropout 0.0 --vocab-size 128256 ${pr_options} --micro-batch-size 1 --global-batch-size 128 --tensor-model-parallel-size $TP --pipeline-model-parallel-size 2 --lr 1.0e-4"
export CUDA_DEVICE_MAX_CONNECTIONS=1
run_cmd="torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py $megatron_options $do_options $sp_options $vp_options"
echo ${run_cmd}
eval ${run_cmd}
