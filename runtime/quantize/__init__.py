"""From a dense checkpoint to a quantised one, `ramify quantize`, and to scales for quantised KV,
`ramify calibrate-kv`."""
