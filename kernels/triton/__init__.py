"""The device ops as Triton kernels. Each agrees with the plain torch of its name in `reference`."""
