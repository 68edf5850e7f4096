"""Device ops as Triton kernels; each agrees with the plain torch of its name in `reference`."""
