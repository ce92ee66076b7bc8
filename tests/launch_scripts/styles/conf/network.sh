NETWORK=( --num-layers ${LAYERS:-24} --hidden-size 2048 )
