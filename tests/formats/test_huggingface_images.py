"""Images before the words of Qwen3-VL and Qwen3.5, which a user asks for by their number."""

from __future__ import annotations

import json

import pytest

import steptime
from every import every
from steptime.build import build, make_workload, read_model
from steptime.core.errors import InputError
from steptime.network.count import count
from steptime.network.ops import OPS

TEXT = {
    "model_type": "qwen3_5_text",
    "num_hidden_layers": 4,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
}
VISION = {
    "model_type": "qwen3_5",
    "depth": 4,
    "hidden_size": 256,
    "num_heads": 4,
    "intermediate_size": 512,
    "out_hidden_size": 512,
    "num_position_embeddings": 256,
}
TABLE = {
    "model_type": "qwen3_5",
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "text_config": TEXT,
    "vision_config": VISION,
}
WHOLE_PARAMETERS = 40_495_936  # as transformers 5.24 counts them
VISION_FLOP = 3_489_660_928  # of two images of 16 x 16 patches, as torch 2.13 counts them


def path_of(folder, table) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(table), encoding="utf-8")
    return str(path)


def product_flop(text: str) -> int:
    graph = build(make_workload(read_model(text), 2, phase="infer"))
    return sum(op.flop for op in count(graph).ops if OPS[op.kind].work)


def test_an_image_adds_its_tower_and_no_tokens(tmp_path):
    path = path_of(tmp_path, TABLE)
    words, image = f"{path}:length=128", f"{path}:length=128,images=1,image=256"
    assert product_flop(image) - product_flop(words) == VISION_FLOP
    for phase in ("infer", "train"):
        assert steptime.count(image, phase=phase).parameters == WHOLE_PARAMETERS
    assert not any("sees images" in note for note in steptime.count(image).notes)
    assert any("images=1 counts" in note for note in steptime.count(words).notes)


def test_servers_and_plans_have_the_words_alone(tmp_path):
    path = path_of(tmp_path, TABLE)
    assert steptime.serve(path, "h100").tpot_s > 0
    with pytest.raises(InputError, match="reads images; nearest: images=0"):
        steptime.serve(f"{path}:images=1", "h100")


@every("images", [0, 1])
def test_a_tower_of_another_width_is_refused_only_where_it_is_read(images, tmp_path):
    path = path_of(tmp_path, TABLE | {"vision_config": VISION | {"out_hidden_size": 500}})
    if images:
        with pytest.raises(InputError, match="out_hidden_size 500 is not the decoder's width 512"):
            steptime.count(f"{path}:images=1")
    else:
        assert steptime.count(path).parameters > 0


@every(
    ("settings", "change", "message"),
    [
        ("images=1,image=250", {}, "image 250 is no multiple of 32 pixels"),
        ("images=9,length=512", {}, "length 512 is not above the 1764 tokens of images"),
        ("", {"num_heads": 7}, "hidden_size: 256 does not divide into 7 heads"),
        ("", {"depth": 0}, "depth: must be at least 1"),
    ],
)
def test_what_does_not_fit_is_one_line(settings, change, message, tmp_path):
    path = path_of(tmp_path, TABLE | {"vision_config": VISION | change})
    with pytest.raises(InputError, match=message):
        steptime.count(f"{path}:{settings}" if settings else path)
