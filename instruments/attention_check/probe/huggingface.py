"""Models of transformers whose attention no Probe sees: they are set to run torch's."""


def register_with_transformers(name: str = "fa_lib") -> str:
    """Register transformers' own "sdpa" attention under a second name, its mask with it, and return the name:
    `model.set_attn_implementation(register_with_transformers())`.

    A model that runs "sdpa" needs none of it, a Probe sees its calls. It is for models set to "eager" or
    "flash_attention_2", whose calls no Probe sees: they then run sdpa, with the bits of "sdpa", watched or not.

    Raises:
        ValueError: transformers has the name for another function.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    attention, masks = AttentionInterface(), AttentionMaskInterface()
    taken = {"eager", *(other for other in attention if attention[other] is not attention["sdpa"] or other == "sdpa")}
    if not isinstance(name, str) or not name or name in taken:
        raise ValueError(f"name: got {name!r}; accepted is a text other than {', '.join(sorted(taken))}")
    AttentionInterface.register(name, attention["sdpa"])
    AttentionMaskInterface.register(name, masks["sdpa"])  # without it the mask is dropped in silence
    return name
