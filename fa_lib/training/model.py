"""The text-to-image model: diffusers' PixArt transformer on pixels, a small T5 encoder on bytes, flow matching.

Every attention call of the transformer goes through a kernel, as `fa_lib.kernels` has them. The text encoder's
own attention has a learned position bias, a mask that requires a gradient, which flash kernels refuse: it is left as it
is, and never wider than the captions.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fa_lib.training.config import Config
from fa_lib.training.data import generator


class TextToImage(torch.nn.Module):
    """Predicts the velocity, noise - image, of a noisy image from its caption.

    Args:
        config: its sizes.
        kernel: of every attention call of the transformer, called kernel(q, k, v), all (batch, heads, n, head_dim).
        seed: of the initial weights.
    """

    def __init__(self, config: Config, kernel: Callable, seed: int):
        super().__init__()
        from diffusers.models.transformers.pixart_transformer_2d import PixArtTransformer2DModel  # takes four seconds,
        from transformers import ByT5Tokenizer, T5Config, T5EncoderModel  # which recorded studies need not wait

        width = config.heads * config.head_dim
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            self.transformer = PixArtTransformer2DModel(
                num_attention_heads=config.heads,
                attention_head_dim=config.head_dim,
                num_layers=config.layers,
                cross_attention_dim=width,
                in_channels=3,
                out_channels=3,
                sample_size=config.image_size,
                patch_size=config.patch_size,
                interpolation_scale=1,
                caption_channels=config.text_width,
                attention_bias=config.attention_bias,
                use_additional_conditions=False,
            )
            self.text = T5EncoderModel(
                T5Config(
                    vocab_size=384,  # ByT5's: 256 bytes, 3 special tokens, 125 unused
                    d_model=config.text_width,
                    d_kv=config.text_width // config.text_heads,
                    d_ff=4 * config.text_width,
                    num_layers=config.text_layers,
                    num_heads=config.text_heads,
                    feed_forward_proj="gated-gelu",
                    dropout_rate=0.0,
                )
            )
        self.config, self.tokenizer = config, ByT5Tokenizer()
        self.attention = Attention(kernel)
        processor: Any = self.attention  # diffusers types a processor as one of its own classes
        self.transformer.set_attn_processor(processor)
        blocks: Any = self.transformer.transformer_blocks
        for layer, block in enumerate(blocks):
            block.attn1.place, block.attn2.place = (layer, "self"), (layer, "cross")

    def tokens(self, captions: Sequence[str]) -> torch.Tensor:
        """Turn captions into what the text encoder reads: bytes, cut or padded, int64 (len(captions), text_bytes)."""
        options: Any = dict(padding="max_length", truncation=True, return_tensors="pt")
        return self.tokenizer(list(captions), max_length=self.config.text_bytes, **options).input_ids

    def forward(self, noisy: torch.Tensor, timesteps: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Predict the velocity of noisy images.

        Args:
            noisy: (batch, 3, size, size), floating point.
            timesteps: (batch,), from 0 to 1000.
            tokens: of `tokens`, int64 (batch, text_bytes).

        Returns:
            (batch, 3, size, size).
        """
        text = self.text(input_ids=tokens).last_hidden_state  # (batch, text_bytes, text_width)
        return self.transformer(
            noisy,
            timestep=timesteps,
            encoder_hidden_states=text,
            added_cond_kwargs={"resolution": None, "aspect_ratio": None},
            return_dict=False,
        )[0]


class Attention:
    """diffusers' attention processor: projections, the kernel, the output projection.

    Attributes:
        kernel: the function.
        dtypes: the set of Q's dtypes in the calls so far.
        probe: None, or a function that is called `probe(place, q, k, v, o)` after each call; place is (layer,
            "self" or "cross"), q, k, v and o are (batch, heads, n, head_dim).
    """

    def __init__(self, kernel: Callable):
        self.kernel, self.dtypes = kernel, set()
        self.probe: Callable[..., None] | None = None

    def __call__(self, attn, hidden_states, encoder_hidden_states=None, **_):
        context = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        projected = attn.to_q(hidden_states), attn.to_k(context), attn.to_v(context)
        q, k, v = (x.unflatten(-1, (attn.heads, -1)).transpose(1, 2) for x in projected)  # (batch, heads, n, head_dim)
        self.dtypes.add(q.dtype)
        with torch.autocast(q.device.type, enabled=False):  # the kernel's precision is its own
            o = self.kernel(q, k, v)
            if self.probe is not None:
                with torch.no_grad():
                    self.probe(attn.place, *(x.detach() for x in (q, k, v, o)))
        return attn.to_out[1](attn.to_out[0](o.transpose(1, 2).flatten(2)))


def noised(
    images: torch.Tensor, seed: int, step: int, levels: str = "shifted"
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Add a training step's noise to a batch of images.

    The noise is drawn on the CPU from (seed, step) alone: the same for every arm and device.

    Args:
        images: uint8 (batch, 3, size, size).
        seed, step: of the noise. levels: how the images' noise levels are drawn, as `noise` of a Config.

    Returns:
        (noisy images, float32 (batch, 3, size, size); timesteps, int64 (batch,); the velocity to predict, float32
        (batch, 3, size, size)).
    """
    from diffusers.schedulers.scheduling_flow_match_euler_discrete import FlowMatchEulerDiscreteScheduler
    from diffusers.training_utils import compute_density_for_timestep_sampling

    shift = 3.0 if levels == "shifted" else 1.0  # 3: more steps with much noise
    schedule: Any = FlowMatchEulerDiscreteScheduler(shift=shift)  # diffusers annotates its tensors as FloatTensor
    draw = generator(seed, step)
    x = images.float() / 127.5 - 1  # (batch, 3, size, size) in [-1, 1]
    noise = torch.randn(x.shape, generator=draw)
    # index 0 is all noise; logit-normal: arXiv 2403.03206
    scheme = "logit_normal" if levels == "shifted" else "none"
    fraction = compute_density_for_timestep_sampling(scheme, len(x), logit_mean=-1, logit_std=1, generator=draw)
    timesteps = schedule.timesteps[(fraction * len(schedule.timesteps)).long()]
    # whole numbers, as integers
    return schedule.scale_noise(x, timesteps, noise), timesteps.long(), noise - x
