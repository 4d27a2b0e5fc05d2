"""Networks that `torch.export.save` wrote: their ATen ops, read without PyTorch."""
