"""Attention as Triton kernels: a step's tables, and the kernels of prefill chunks, decode rows and latents."""
