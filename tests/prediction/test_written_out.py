"""What a stack keeps for gradients beyond the op table."""

from steptime.build import make_workload, read_model
from steptime.core.workload import Tuning
from steptime.prediction.step_model import StepModel

DECODER = (
    "transformer:kind=decoder,layers=2,width=64,heads=4,ffn=128,length=32,vocabulary=96,"
    "norm=rms,activation=swiglu,positions=rotary"
)


def test_what_transformers_writes_out_is_kept_in_float32() -> None:
    """LlamaRMSNorm keeps x in float32 in place of 16 bit, the loss logits and log_softmax in it."""
    batch, tuning = 2, Tuning(rank=2, on="q+v")
    workload = make_workload(
        read_model(DECODER), batch, dtype="bfloat16", optimizer="adam", tuning=tuning
    )
    plain, written = (
        StepModel(workload, "a100", options={"stack": stack})
        for stack in ("torch-eager", "hf-2025")
    )
    rows = batch * 32
    norms, logits = 4 * rows * 64, rows * 96  # of 2 bytes; before the first adapter nothing is kept
    kept = sum(written.sizes().values()) - sum(
        written.graph().tensors[name].size_bytes for name in written.sizes()
    )
    assert kept == 2 * (norms + 3 * logits)
    assert max(written.living()) > max(plain.living())
