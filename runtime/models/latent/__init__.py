"""Multi-head latent attention (MLA): its configuration, its parameters and its computation."""
