"""The torchrun plug-in: `torchrun --rdzv-backend=rdzv`."""
