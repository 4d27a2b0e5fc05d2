"""Networks of every family that train in a moment, for tests of backends."""

from __future__ import annotations

from steptime.build import make_workload, read_model
from steptime.core.workload import Workload

FC = "fc:layers=2,nodes=8,inputs=6,outputs=5,batch=4"
TINY = {
    "fc": FC,
    "cnn": "cnn:block=bottleneck,blocks=1,filters=4,image=32,classes=5,batch=2",
    "rnn": "rnn:cell=rnn,layers=2,embedding=4,length=3,vocabulary=5,batch=2",
    "lstm": "rnn:cell=lstm,layers=2,embedding=4,length=3,vocabulary=5,batch=2",
    "gru": "rnn:cell=gru,layers=2,embedding=4,length=3,vocabulary=5,batch=2",
    "encoder": "transformer:kind=encoder,layers=1,width=8,heads=2,length=4,vocabulary=9,"
    "dropout=0.1,batch=2",
    "decoder": "transformer:kind=decoder,layers=1,width=8,heads=4,kv_heads=2,length=4,"
    "vocabulary=9,norm=rms,activation=swiglu,positions=rotary,bias=no,tied=no,batch=2",
}


def workload(text: str, **how: str) -> Workload:
    return make_workload(read_model(text), None, **how)
