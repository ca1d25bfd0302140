"""Files of weights: names, headers, shapes. Never tensors."""
