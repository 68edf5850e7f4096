"""The prefix cache: KV pages in a radix tree over tokens, with leases, eviction and a host tier."""
