"""How a model would fit and run on some devices, worked out on paper. Opens no weights and needs no device."""
