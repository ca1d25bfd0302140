"""minivllm"""
