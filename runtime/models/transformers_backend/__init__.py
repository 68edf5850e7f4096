"""Models computed by the package `transformers`, with the runtime's paged KV and attention.

The model's own attention modules call the runtime through transformers' attention interface. Everything else of a layer
is transformers' code; its weights are read from safetensors files alone, and no code of a checkpoint runs.
"""
