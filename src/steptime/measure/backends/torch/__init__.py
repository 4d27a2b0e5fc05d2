"""PyTorch as a backend: `backend` has what `measure/contract.py` asks for."""
