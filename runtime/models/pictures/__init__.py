"""Features of pictures: vision towers and projectors, and a store of what they computed."""
