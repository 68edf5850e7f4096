"""From a dense checkpoint to a quantised one: `ramify quantize`."""
