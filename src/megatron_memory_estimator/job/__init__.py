"""What runs: the model, the layout, the training, the machine, and a job of all four."""
