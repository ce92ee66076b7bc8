"""Model state: DDP buffers, weights, gradients, and what the optimizer keeps."""
