"""Records of what the frontend serves: programs and requests, for those who look at them."""
