"""A checkpoint of a model that reads pictures, small and untrained: what it says of one means nothing, and is its own.

Idefics3 is among the few of vLLM's architectures with pictures that do without torchvision, which the CPU build of
torch here does not go with. Its language model is a Llama, like the embedded model, whose tokenizer it takes.
"""

from pathlib import Path
from typing import Any

from diptych.models.hub import resolve_model

TILE_PIXELS = 56
"""Width and height of what its vision model sees at once; a picture is four of them, and all of it in one more."""
PATCH_PIXELS = 14
TOKENS_PER_TILE = (TILE_PIXELS // PATCH_PIXELS // 2) ** 2
_PICTURE = "<image>"
_TOKENS = (
    "<fake_token_around_image>",
    _PICTURE,
    "<end_of_utterance>",
    "<global-img>",
    *(f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)),
)
_SPREAD = 0.2
"""Of random weights: wide enough that no two tokens are about as likely."""
_TEMPLATE = """\
{% for message in messages %}{{ message['role'] }}: {% if message['content'] is string %}{{ message['content'] }}\
{% else %}{% for part in message['content'] %}{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}\
{% endif %}{% endfor %}{% endif %}
{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"""


def make_picture_model(folder: Path) -> None:
    """Write the checkpoint: weights, tokenizer, and how pictures are cut."""
    import torch
    from transformers import AutoTokenizer, Idefics3ForConditionalGeneration, Idefics3Processor
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    tokenizer = AutoTokenizer.from_pretrained(str(resolve_model("embedded")))
    tokenizer.add_special_tokens({"additional_special_tokens": list(_TOKENS)})
    torch.manual_seed(1)
    model = Idefics3ForConditionalGeneration(_config(tokenizer))
    model.float().save_pretrained(folder)
    cut = Idefics3ImageProcessorPil(
        size={"longest_edge": 2 * TILE_PIXELS}, max_image_size={"longest_edge": TILE_PIXELS}
    )
    tokenizer.chat_template = _TEMPLATE
    processor = Idefics3Processor(cut, tokenizer, image_seq_len=TOKENS_PER_TILE, chat_template=_TEMPLATE)
    processor.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _config(tokenizer: Any) -> Any:
    from transformers import Idefics3Config

    text = {
        "model_type": "llama",
        "vocab_size": len(tokenizer),
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": 2048,
        "initializer_range": _SPREAD,
        "pad_token_id": tokenizer.pad_token_id,
    }
    vision = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 1,
        "image_size": TILE_PIXELS,
        "patch_size": PATCH_PIXELS,
        "initializer_range": _SPREAD,
    }
    return Idefics3Config(
        text_config=text,
        vision_config=vision,
        scale_factor=2,
        image_token_id=tokenizer.convert_tokens_to_ids(_PICTURE),
        pad_token_id=tokenizer.pad_token_id,
    )
