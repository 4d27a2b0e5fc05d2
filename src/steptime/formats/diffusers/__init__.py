"""Transformers of diffusers (FLUX, Stable Diffusion 3, PixArt) by the `config.json` of one."""
