"""Wrong command lines of the commands that predict, and wrong files of networks."""

from __future__ import annotations

import json

LONG = "x" * 500


def _net(**changes: object) -> str:
    """Return Paleo's file of one convolution, with keys of its layer changed; None drops one."""
    layer = {
        "type": "Convolution", "parents": ["data"], "filter": [3, 3, 3, 4],
        "strides": [1, 1, 1, 1], "padding": "SAME",
    } | changes  # fmt: skip
    data = {"type": "Input", "parents": [], "tensor": [2, 8, 8, 3]}
    kept = {key: value for key, value in layer.items() if value is not None}
    return json.dumps({"name": "net", "layers": {"data": data, "conv1": kept}})


def _caffe(layer: str) -> str:
    return f'input: "data" input_dim: 1 input_dim: 3 input_dim: 8 input_dim: 8\nlayer {{ {layer} }}'


NETWORKS: dict[str, tuple[str | bytes, str]] = {  # file: what it holds, what the line says
    "parent.json": (
        _net(parents=["dta"]),
        "layer 'conv1': unknown parent 'dta'; did you mean 'data'?",
    ),
    "cycle.json": (_net(parents=["conv1"]), "layer 'conv1'"),
    "missing.json": (_net(filter=None), "layer 'conv1': "),
    "rank.json": (_net(filter=[3, 3, 4]), "layer 'conv1': "),
    "channels.json": (_net(filter=[3, 3, 5, 4]), "layer 'conv1': "),
    "size.json": (_net(filter=[3, 3, 3, 10**30]), "layer 'conv1': "),
    "window.json": (_net(filter=[9, 9, 3, 4], padding="VALID"), "layer 'conv1': "),
    "type.json": (
        _net(type="Convolutoin"),
        "layer 'conv1': unknown type of layer 'Convolutoin'; did you mean 'Convolution'?",
    ),
    "activation.json": (_net(activation_fn="rleu"), "layer 'conv1': "),
    "nothing.json": ('{"name": "n", "layers": {}}', "nothing.json"),
    "layers.json": ('{"name": "n", "layers": 3}', "layers.json"),
    "deeper.json": ('{"layers": ' + '{"a": {"type": "Block", "layers": ' * 400, "deeper.json"),
    "junk.prototxt": (bytes(range(256)) * 4, "'junk.prototxt': not a text file in UTF-8"),
    "text.prototxt": ("}{ this is none", "text.prototxt"),
    "empty.prototxt": ("", "empty.prototxt"),
    "type.prototxt": (
        _caffe('name: "c" type: "Convolutoin" bottom: "data" top: "c"'),
        "Convolutoin",
    ),
    "bottom.prototxt": (_caffe('name: "r" type: "ReLU" bottom: "dta" top: "r"'), "'dta'"),
    "output.prototxt": (
        _caffe('name: "c" type: "Convolution" bottom: "data" top: "c" '
               "convolution_param { kernel_size: 3 }"),
        "num_output",
    ),
    "kernel.prototxt": (
        _caffe('name: "c" type: "Convolution" bottom: "data" top: "c" '
               "convolution_param { num_output: 4 kernel_size: 99 }"),
        "layer 'c': a filter [4, 3, 99, 99] does not fit into [1, 3, 8, 8]",
    ),
}  # fmt: skip

_DEVICE = [
    ("", "Missing option '--device'"),
    ("--device V10", "unknown device 'V10'; did you mean 'V100'?"),
    ("--device ''", "unknown device ''"),
    ("--device local", "device 'local' is not known yet: run 'steptime probe' first"),
    ("--device absent.toml", "absent.toml: No such file"),
    ("--device folder.toml", "folder.toml: Is a directory"),
    ("--device junk.toml", "junk.toml: not"),
    ("--device deep.toml", "deep.toml: not TOML"),
    ("--device empty.toml", "empty.toml: 'name' is missing"),
    ("--device device.toml", "device.toml: "),
    (f"--device {LONG}", f"unknown device '{LONG[:60]}...'"),
    (f"--device {LONG}.toml", "File name too long"),
    ("--device tesla-k40 --dtype bfloat16", "no peak is known for bfloat16"),
]
_STEP = [  # what predict, explain and scale share
    ("--batch 0", "batch: must be at least 1, not 0"),
    ("--batch many", "batch: must be a whole number, not 'many'"),
    ("--dtype float31", "unknown dtype 'float31'; did you mean 'float32'?"),
    ("--optimizer adm", "unknown optimizer 'adm'; did you mean 'adam'?"),
    ("--option fues=no", "unknown option 'fues'; did you mean 'fuse'?"),
    ("--option fuse=maybe", "option fuse is yes or no, not 'maybe'"),
    ("--option fuse", "option 'fuse' is not of the form name=value"),
    (f"--option fuse={LONG}", f"not '{LONG[:60]}...'"),
    ("--option fuse=yes --option fuse=yes", "'fuse' is given twice"),
    ("--option fuse=1", "option fuse is yes or no, not '1'"),
    ("--option ppp_comp=0", "option ppp_comp is a number above 0 and at most 1, not '0'"),
    ("--option ppp_comp=nan", "option ppp_comp is a number above 0 and at most 1, not 'nan'"),
    ("--option ppp_comm=2", "option ppp_comm is a number above 0 and at most 1, not '2'"),
]
_GRID = [
    ("fc --batch 1,,2", "--batch: must be a whole number, not ''"),
    ("fc --batch 1,1", "--batch: 1 is given twice"),
    ("fc --batch 8..1", "--batch: range '8..1' runs backwards"),
    ("fc --batch 1..99999999", "has more than 10000000 values"),
    ("fc --batch 1..2000000 --replicas 1..6 --link aws", "a grid of 12000000 cells; at most"),
    ("fc --replicas 0", "--replicas: must be at least 1, not 0"),
    ("fc --replicas 1,2", "several replicas exchange gradients: name a link with --link"),
    ("fc --replicas 1,2 --link asw", "unknown link 'asw'; did you mean 'aws'?"),
    ("fc,fc", "MODEL: 'fc' is given twice"),
    ("fc,,nin", "MODEL: 'fc,,nin' has an empty name"),
    ("fc,resnet5", "unknown model 'resnet5'"),
    ("fc --by-op", "--by-op shows the ops of one prediction; leave out --grid"),
    ("fc --out cells.txt", "unknown table format '.txt'"),
    ("fc --out folder.csv", "folder.csv: is a folder"),
    ("fc --out absent/cells.csv", "absent/cells.csv: is a folder, or is in a folder that"),
]
_IN = [
    ("fc --in records", "MODEL does not go with --in"),
    ("--in records --grid", "--grid does not go with --in"),
    ("--in records --batch 4", "--batch does not go with --in"),
    ("--in absent", "absent: no such folder of records"),
    ("--in file", "file: "),
    ("--in records --device V10", "unknown device 'V10'; did you mean 'V100'?"),
    ("--in records --method peleo", "unknown method 'peleo'; did you mean 'paleo'?"),
    ("--in records --option fuse=1", "option fuse is yes or no, not '1'"),
    ("--in records --link asw", "unknown link 'asw'; did you mean 'aws'?"),
]
_FIT = [
    ("--device T4,V100", "several devices go with predict --grid"),
    ("--device T4 --method peleo", "unknown method 'peleo'; did you mean 'paleo'?"),
    ("--device T4 --phase trian", "unknown phase 'trian'; did you mean 'train'?"),
]
_CHOOSE = [
    ("--devices T4,,V100", "--devices 'T4,,V100': a name is empty"),
    ("--devices V10", "unknown device 'V10'; did you mean 'V100'?"),
    ("--devices gpuu", "unknown device 'gpuu'"),
    ("--devices absent.toml", "absent.toml: No such file"),
    ("--devices tpu-v2", "no peak is known for float32"),
    ("--devices T4 --samples 0", "--samples: must be at least 1, not 0"),
    ("--devices T4 --samples many", "--samples: must be a whole number, not 'many'"),
    ("--devices T4 --epochs 0", "--epochs: must be above 0"),
    ("--devices T4 --prices absent.toml", "absent.toml: No such file"),
    ("--devices T4 --prices junk.toml", "junk.toml: not"),
    ("--devices T4 --prices empty.toml", "empty.toml: 'name' is missing"),
    ("--devices T4 --sort tmie", "unknown --sort 'tmie'; did you mean 'time'?"),
    ("--devices T4 --method peleo", "unknown method 'peleo'; did you mean 'paleo'?"),
    ("--devices T4 --phase trian", "unknown phase 'trian'; did you mean 'train'?"),
]
_SCALE = [
    ("--link local", "link 'local' is not known yet: run 'steptime probe --collectives' first"),
    ("--link asw", "unknown link 'asw'; did you mean 'aws'?"),
    ("--replicas 2", "2 replicas need a link: --link LINK"),
    ("--link aws --replicas 0", "--replicas: must be at least 1, not 0"),
    ("--link aws --replicas 1,2,...,7", "--replicas: '...' does not lead to 7"),
    ("--link aws --scaling week", "unknown --scaling 'week'; did you mean 'weak'?"),
    ("--link aws --scaling strong --batch 2 --replicas 4", "4 replicas cannot share a batch of 2"),
    ("--link aws --parallel date", "unknown"),
    ("--link aws --parallel hybrid --replicas 2", "split"),
    ("--link aws --parallel model --per-node 4", "exchanges no gradients: leave out --per-node"),
    ("--link aws --collective rign", "unknown collective 'rign'; did you mean 'ring'?"),
    ("--link aws --method peleo", "unknown method 'peleo'; did you mean 'paleo'?"),
    ("--link aws --compression 0", "compression"),
    ("--link aws --per-node 0", "per-node"),
    ("--link aws --links-per-node 0", "links-per-node"),
    ("--link aws --inside asw", "unknown link 'asw'; did you mean 'aws'?"),
    ("--link aws --servers 0", "servers"),
    ("--link aws --latency-us=-1", "latency"),
    ("--link aws --samples 0", "samples"),
    ("--link aws --samples 10 --epochs 0", "epochs"),
    ("--link aws --samples 10 --price=-1", "price"),
    ("--link aws --samples 10 --price 1 --billing our", "unknown --billing 'our'; did you mean 'h"),
    ("--link aws --method paleo --overlap", "overlap"),
]

_ENERGY = [
    ("resnet5", "unknown model 'resnet5'"),
    ("absent.json", "configuration 'absent.json': no such file"),
    ("junk.json", "junk.json: is no JSON"),
    ("deep.json", "deep.json: is no JSON"),
    ("list.json", "list.json: must be a table with 'family' or 'model'"),
    ("absent.toml", "model 'absent.toml': no such file"),
    ("fc --accelerator eyeris", "unknown accelerator 'eyeris'; did you mean 'eyeriss'?"),
    ("fc --accelerator eie+eie", "accelerator 'eie+eie': two for the part 'fc'"),
    (f"fc --accelerator {LONG}", f"unknown accelerator '{LONG[:60]}...'"),
    ("fc --method fodlm", "unknown method 'fodlm'; did you mean 'fodlam'?"),
    ("fc --method fodlam --by-op", "--by-op: method fodlam prints only what the original does"),
    ("fc --method fodlam --dram", "--dram: method fodlam prints only what the original does"),
    ("fc --method fodlam --process 45nm", "--process is of method accelerator"),
    ("fc --method fodlam --scaling none", "--scaling is of method accelerator"),
    ("fc --process 65um", "process '65um' is not of the form 65nm, 45nm-lp or 65nm@1.1V"),
    (f"fc --process {LONG}", f"process '{LONG[:60]}...' is not of the form"),
    ("fc --scaling denard", "unknown scaling 'denard'; did you mean 'dennard'?"),
    ("fc --scaling stillmaker-baas --process 33nm", "unknown process of stillmaker-baas '33nm'"),
    ("fc --scaling stillmaker-baas --process 32nm", "needs its voltage"),
    ("fc --nets folder.toml", "--nets is for the netfile of a configuration"),
    ("fc --nets absent", "--nets 'absent': no such folder"),
    ("--diagnose --by-op", "--by-op, --dram and --nets need a network beside --diagnose"),
]

_IMPORT = [
    ("absent --out o", "absent: no such file or folder"),
    (f"{LONG} --out o", "File name too long"),
    ("file", "Missing option '-o' / '--out'"),
    (
        "file --out o",
        "nothing here became a record (file: no known format: begins with 'no folder'",
    ),
    ("junk.json --out o", "no known format: binary data"),
    ("empty.json --out o", "no known format: an empty file"),
    ("empty --out o", "readme: no known format: an empty file"),
    ("timings.csv --out file", "file: is a file, not a folder of records"),
    ("file --out o --mapping absent.toml", "mapping 'absent.toml': no such file"),
    ("file --out o --mapping junk.toml", "mapping 'junk.toml': is no TOML"),
    ("file --out o --mapping empty.toml", "empty.toml: name: Field required; source: Field"),
    ("file --out o --mapping deep.toml", "mapping 'deep.toml': is no TOML"),
    ("file --out o --mappin m.toml", "did you mean '--mapping'?"),
]
LINES = [
    *(
        (f"{line} --format cvs", "unknown --format 'cvs'; did you mean 'csv'?")
        for line in (
            "list",
            "results records",
            "errors records",
            "scale fc --device T4",
            "explain fc --device T4",
            "compare records",
            "split fc --device T4 --server V100 --link aws",
            "status records",
            "query 'FROM records' --in records",
        )
    ),
    ("list devices a101", "unknown device 'a101'; did you mean 'a10'?"),
    ("list models fcc", "unknown model 'fcc'; did you mean 'fc'?"),
    ("count fc --stack torch-egaer", "'torch-egaer'; did you mean 'torch-eager'?"),
    ("count fc --graph absent/net.json", "--graph 'absent/net.json': cannot be written"),
    ("count fc --graph net.txt", "--graph 'net.txt': the name of a graph"),
    ("show", "Missing argument 'NAME'"),
    ("show v10", "unknown name 'v10'; did you mean 'V100'?"),
    ("show absent.toml", "absent.toml: No such file"),
    ("predict fc --gpu a100", "no such option '--gpu'; did you mean '--device'?"),
    ("predict fc --device a100,h100", "--device 'a100,h100': several devices go with predict --gr"),
    ("explain fc --device a100,h100", "--device 'a100,h100': several devices go with predict --gr"),
    ("scale fc --device T4 --network asw", "unknown link 'asw'; did you mean 'aws'?"),
    ("scale fc --device T4 --link aws --workers=0", "--replicas: must be at least 1, not 0"),
    *((f"import {words}", message) for words, message in _IMPORT),
    ("table records --format cvs", "unknown --format 'cvs'; did you mean 'csv'?"),
    (f"table records --format {LONG}", f"unknown --format '{LONG[:60]}...'"),
    ("compare records --any-dtype", "--any-dtype goes with --platforms A,B"),
    ("plot device --in records -o p.svg", "unknown plot 'device'; did you mean 'devices'?"),
    *((f"predict {file} --device T4", message) for file, (_, message) in NETWORKS.items()),
    *((f"count {file}", message) for file, (_, message) in NETWORKS.items()),
    *((f"predict fc {words}", message) for words, message in _DEVICE),
    *((f"predict fc --device T4 {words}", message) for words, message in _STEP),
    ("predict fc --device T4 --method rooflin", "unknown method 'rooflin'; did you mean 'roofline"),
    ("predict fc --device T4 --method paleo --option fuse=yes", "paleo: unknown option 'fuse'"),
    ("predict fc --device T4 --method paleo --option pipeline=1", "pipeline is true or false or"),
    ("predict nin --device T4 --method paleo --option conv=wino", "conv is gemm or fft or fft-til"),
    ("predict fc --device T4 --phase trian", "unknown phase 'trian'; did you mean 'train'?"),
    ("list quantities zzz", "unknown quantity 'zzz'"),
    ("predict fc --device T4 --replicas 2", "--replicas needs --grid"),
    ("predict fc --device T4 --steps 0", "steps"),
    ("predict fc --device T4 --steps 9 --kwh-price=-1", "kwh-price"),
    ("predict fc --device T4 --steps 9 --kwh-co2 much", "kwh-co2"),
    ("predict fc --device T4 --kwh-price 1", "--kwh-price needs --steps"),
    ("predict fc --grid --device T4 --steps 9", "--steps"),
    ("predict fc --device T4 --link aws", "--link needs --grid"),
    ("predict fc --device T4 --out a.csv", "--out needs --grid"),
    ("predict fc,nin --device T4", "fc,nin"),
    ("predict alexnet --device K40 --method paleo", "its filter gradient comes out [23, 23]"),
    *((f"predict --grid --device T4 {words}", message) for words, message in _GRID),
    ("predict fc --grid --device T4,t4", "--device: 't4' is given twice"),
    ("predict fc --grid --device T4,,V100", "--device: 'T4,,V100' has an empty name"),
    *((f"predict {words}", message) for words, message in _IN),
    *((f"fit fc {words}", message) for words, message in _DEVICE),
    *((f"fit fc --device T4 {words}", message) for words, message in (*_STEP, *_FIT)),
    *((f"choose fc {words}", message) for words, message in _CHOOSE),
    *((f"choose fc --devices T4 {words}", message) for words, message in _STEP),
    *((f"explain fc {words}", message) for words, message in _DEVICE),
    *((f"explain fc --device T4 {words}", message) for words, message in _STEP),
    ("explain fc --device T4 --phase trian", "unknown phase 'trian'; did you mean 'train'?"),
    ("explain fc --device T4 --out w.gif", "unknown picture format '.gif'"),
    ("explain alexnet --device K40", "its filter gradient comes out [23, 23]"),
    *((f"scale fc {words}", message) for words, message in _DEVICE),
    *((f"scale fc --device T4 --replicas 1 {words}", message) for words, message in _STEP),
    *((f"scale fc --device T4 {words}", message) for words, message in _SCALE),
    ("split fc --server T4 --link aws", "Missing option '--device'"),
    ("split fc --device T4 --link aws", "Missing option '--server'"),
    ("split fc --device T4 --server V100", "Missing option '--link'"),
    ("split fc --device T5 --server V100 --link aws", "unknown device 'T5'"),
    ("split fc --device T4 --server V101 --link aws", "unknown device 'V101'"),
    ("split fc --device T4 --server V100 --link asw", "unknown link 'asw'"),
    ("split fc --device T4 --server V100 --link aws --batch 0", "must be at least 1, not 0"),
    ("split fc --device T4 --server V100 --link aws --dtype float31", "unknown dtype 'float31'"),
    ("split fc --device T4 --server V100 --link aws --method m", "unknown method 'm'"),
    ("split fc --device T4 --server V100 --link aws --option a=b", "unknown option 'a'"),
    *((f"energy {words}", message) for words, message in _ENERGY),
    ("explore --models fc,resnet5", "unknown model 'resnet5'"),
    ("explore --models fc --devices V101", "unknown device 'V101'; did you mean 'V100'?"),
    ("explore --models fc -o page.txt", "page.txt"),
    ("explore --models fc -o absent/page.html", "absent/page.html"),
]
