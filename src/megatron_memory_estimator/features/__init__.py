"""What changes the ops of a traced unit: offloading, the paged stash, CUDA graphs. Each is a set of parts."""
