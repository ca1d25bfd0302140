"""What runs on one device: KV memory, batches, the model's step."""
