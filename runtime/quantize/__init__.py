"""From a dense checkpoint to a quantised one, `ramiform quantize`, and to scales for quantised KV,
`ramiform calibrate-kv`."""
