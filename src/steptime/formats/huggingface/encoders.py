"""Text encoders, and encoder-decoders (T5, BART, Whisper)."""

from steptime.formats.huggingface.config import Config, Settings
from steptime.formats.huggingface.types import SPAN_CLASSES, model_type

ENCODER_HEADS = (
    "Model",
    "ForMaskedLM",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
)
ENCODER_DECODER_HEADS = (
    "ForConditionalGeneration",
    "Model",
    "ForSequenceClassification",
    "ForQuestionAnswering",
)
TWO_LENGTHS = ("length", "target_length")
POOLED_HEADS = ("none", "classes", "pair", "choices", "pretraining")  # they read a pooled token
# heads whose networks differ from those of another head in their classes alone
HEAD_OF_EQUAL_NETWORK = {"pair": "classes", "choices": "classes", "made": "tokens"}
T5_ACTIVATIONS = {"gated-gelu": "gelu_new", "gated-silu": "silu", "gated-relu": "relu"}


def encoder(config: Config) -> Settings:
    """Describe an encoder like BERT: learned positions, norms after each part."""
    config.require("is_decoder", only=False)
    config.require("add_cross_attention", only=False)
    head = config.head
    is_tied = config.get("tie_word_embeddings", True)
    max_length = config.get("max_position_embeddings", 512)
    if head in ("pair", "pretraining"):  # whether one text follows another
        class_count = 2
    elif head in ("choices", "made"):  # one score: of a choice, or whether a generator made a word
        class_count = 1
    else:
        class_count = config.label_count
    return {
        "kind": "encoder",
        "width": config.count("hidden_size", 768),
        "layers": config.get("num_hidden_layers", 12),
        "vocabulary": config.get("vocab_size", 30522),
        "tied": is_tied,
        "length": max_length,
        "max_length": max_length,
        "segments": config.get("type_vocab_size", 2),
        "heads": config.count("num_attention_heads", 12),
        "ffn": config.get("intermediate_size", 3072),
        "activation": config.get("hidden_act", "gelu"),
        # some heads differ in the number of classes alone
        "head": HEAD_OF_EQUAL_NETWORK.get(head, head),
        "classes": class_count,
        "pooler": head in POOLED_HEADS,
        # a second bias is stored where no weights are shared
        "masked_biases": 1 if is_tied else 2,
    }


@model_type(
    "bert",
    class_ends=(*ENCODER_HEADS, "LMHeadModel", "ForPreTraining", "ForNextSentencePrediction"),
    changed_heads={"LMHeadModel": "masked"},
)
def bert(config: Config) -> Settings:
    """Describe BERT."""
    return encoder(config)


def describe_roberta(config: Config) -> Settings:
    """Describe RoBERTa and its relatives: positions from row 2."""
    settings = encoder(config)
    # rows 0 and 1 of the table of positions stand before the first token's: padding_idx is 1
    return settings | {
        "length": settings["max_length"] - 2,
        "first_position": 2,
        "pooler": config.head in ("none", "choices"),
        "class_layers": 2 if config.head == "classes" else 1,
    }


@model_type(
    "roberta", class_ends=(*ENCODER_HEADS, "ForCausalLM"), changed_heads={"ForCausalLM": "masked"}
)
def roberta(config: Config) -> Settings:
    """Describe RoBERTa."""
    config.fill_defaults(vocab_size=50265)
    return describe_roberta(config)


@model_type(
    "xlm-roberta",
    "XLMRoberta",
    (*ENCODER_HEADS, "ForCausalLM"),
    {"ForCausalLM": "masked"},
)
@model_type("camembert", "Camembert", (*ENCODER_HEADS, "ForCausalLM"), {"ForCausalLM": "masked"})
def xlm_roberta(config: Config) -> Settings:
    """Describe XLM-RoBERTa and CamemBERT."""
    return describe_roberta(config)


@model_type("distilbert", "DistilBert", ENCODER_HEADS)
def distilbert(config: Config) -> Settings:
    """Describe DistilBERT: half as many blocks, no segments, no pooling layer."""
    config.rename(
        dim="hidden_size",
        hidden_dim="intermediate_size",
        n_layers="num_hidden_layers",
        n_heads="num_attention_heads",
        activation="hidden_act",
    )
    config.fill_defaults(num_hidden_layers=6, type_vocab_size=0)
    return encoder(config) | {
        "pooler": False,
        "class_layers": 2 if config.head in ("classes", "choices") else 1,
        "class_activation": "relu",
        "masked_biases": 1,
    }


@model_type("albert", class_ends=(*ENCODER_HEADS, "ForPreTraining"))
def albert(config: Config) -> Settings:
    """Describe ALBERT: blocks share their weights, words have a width of their own."""
    config.fill_defaults(
        vocab_size=30000,
        hidden_size=4096,
        intermediate_size=16384,
        num_attention_heads=64,
        hidden_act="gelu_new",
    )
    config.require("inner_group_num", only=1)
    # whether one text follows another; one score of each choice
    classes = {"pair": 2, "choices": 1}.get(config.head, config.label_count)
    return encoder(config) | {
        "block_groups": config.get("num_hidden_groups", 1),
        "embedding_width": config.get("embedding_size", 128),
        "classes": classes,
    }


@model_type(
    "electra",
    class_ends=(*ENCODER_HEADS, "ForPreTraining"),
    changed_heads={"ForPreTraining": "made"},
)
def electra(config: Config) -> Settings:
    """Describe ELECTRA, whose pre-training tells words of a generator from the text's own."""
    config.fill_defaults(hidden_size=256, intermediate_size=1024, num_attention_heads=4)
    return encoder(config) | {
        "embedding_width": config.get("embedding_size", 128),
        "pooler": False,
        "class_layers": 1 if config.head in ("tokens", "spans") else 2,
        "class_activation": "gelu",
    }


@model_type(
    "t5",
    "T5",
    (
        "ForConditionalGeneration",
        "WithLMHeadModel",
        "EncoderModel",
        "Model",
        "ForSequenceClassification",
        "ForTokenClassification",
        "ForQuestionAnswering",
    ),
    free_parameters=TWO_LENGTHS,
)
def t5(config: Config) -> Settings:
    """Describe T5 and Flan-T5: relative positions, no biases."""
    config.rename(
        hidden_size="d_model",
        num_attention_heads="num_heads",
        num_hidden_layers="num_layers",
        head_dim="d_kv",
        file_spelling_wins=True,  # a file with both means the first spelling of a pair
    )
    activation = config.get("feed_forward_proj", "relu")
    is_gated = "gated" in activation
    config.require("is_gated_act", only=is_gated)
    is_tied = config.get("tie_word_embeddings", True)
    if not is_tied:
        config.remark("its output is counted as tied to the embedding, as transformers 5 has it")
    head = config.head
    layers = config.get("num_layers", 6)
    decoder_layers = config.get("num_decoder_layers", 0) or layers
    # classes of tokens are read off the encoder
    has_decoder = head not in ("encoder", "tokens")
    return {
        "kind": "encoder",
        "width": config.count("d_model", 512),
        "layers": layers,
        "vocabulary": config.get("vocab_size", 32128),
        "length": 512,
        "target_length": 512,
        "tied": True,
        "positions": "relative",
        "segments": 0,
        "heads": config.count("num_heads", 8),
        "head_width": config.get("d_kv", 64),
        "buckets": config.get("relative_attention_num_buckets", 32),
        "activation": T5_ACTIVATIONS.get(activation, activation),
        "gated": is_gated,
        "ffn": config.get("d_ff", 2048),
        "bias": False,
        "norm": "rms",
        "norms": "before",
        "decoder_layers": decoder_layers if has_decoder else 0,
        "pooler": False,
        "class_layers": 2 if head == "classes" else 1,
        "classes": SPAN_CLASSES if head == "spans" else config.label_count,
        # transformers scales what a tied output reads
        "output_scaled": is_tied and head == "words",
        "head": "none" if head == "encoder" else head,
    }


def encoder_decoder(config: Config) -> Settings:
    """Describe an encoder and a decoder like BART: learned positions, norms after each part."""
    config.rename(
        hidden_size="d_model",
        num_attention_heads="encoder_attention_heads",
        num_hidden_layers="encoder_layers",
        file_spelling_wins=True,  # a file with both means the first spelling of a pair
    )
    head = config.head
    max_length = config.get("max_position_embeddings", 1024)
    return {
        "kind": "encoder",
        "width": config.count("d_model", 1024),
        "layers": config.get("encoder_layers", 12),
        "vocabulary": config.get("vocab_size", 50265),
        "tied": config.get("tie_word_embeddings", True),
        "length": max_length,
        "target_length": max_length,
        # two rows of the table of positions stand before the first token's
        "max_length": max_length + 2,
        "first_position": 2,
        "segments": 0,
        "scaled": config.get("scale_embedding", False),
        "heads": config.count("encoder_attention_heads", 16),
        "ffn": config.get("encoder_ffn_dim", 4096),
        "activation": config.get("activation_function", "gelu"),
        "decoder_layers": config.get("decoder_layers", 12),
        "decoder_heads": config.count("decoder_attention_heads", 16),
        "decoder_ffn": config.get("decoder_ffn_dim", 4096),
        "pooler": False,
        "class_layers": 2 if head == "classes" else 1,
        "classes": SPAN_CLASSES if head == "spans" else config.label_count,
        "head": head,
    }


@model_type(
    "bart", class_ends=ENCODER_DECODER_HEADS, default_label_count=3, free_parameters=TWO_LENGTHS
)
def bart(config: Config) -> Settings:
    """Describe BART."""
    config.require("tie_word_embeddings", only=True)
    return encoder_decoder(config)


@model_type("mbart", "MBart", ENCODER_DECODER_HEADS, free_parameters=TWO_LENGTHS)
def mbart(config: Config) -> Settings:
    """Describe mBART: norms before each part."""
    config.require("tie_word_embeddings", only=True)
    return encoder_decoder(config) | {"norms": "before", "embedding_norm": True}


@model_type(
    "whisper",
    class_ends=("ForConditionalGeneration", "Model", "ForAudioClassification"),
    free_parameters=("target_length",),
)
def whisper(config: Config) -> Settings:
    """Describe Whisper: an encoder of sound, a decoder of words."""
    config.require("use_weighted_layer_sum", only=False)
    config.fill_defaults(
        vocab_size=51865,
        d_model=384,
        encoder_layers=4,
        encoder_ffn_dim=1536,
        encoder_attention_heads=6,
        decoder_layers=4,
        decoder_ffn_dim=1536,
        decoder_attention_heads=6,
    )
    frames = config.get("max_source_positions", 1500)
    words = config.get("max_target_positions", 448)
    projection_width = config.get("classifier_proj_size", 256)
    is_classifier = config.head == "sound"
    settings = encoder_decoder(config)
    return settings | {
        "stem": "sound",
        "channels": config.get("num_mel_bins", 80),
        "length": frames,
        "target_length": words,
        "max_length": frames,
        "first_position": 0,
        "key_bias": False,
        "norms": "before",
        "target_rows": words,
        "decoder_layers": 0 if is_classifier else settings["decoder_layers"],
        "projection": projection_width if is_classifier else 0,
        "head": "mean" if is_classifier else config.head,
        "classes": config.label_count,
    }
