"""From what users have (Hugging Face configs, Megatron settings) to a TrainingJob."""
