"""An image file as the pixels that are trained on: which files are accepted, and how each becomes RGB."""

import io

import numpy as np
import torch
from PIL import Image

FORMATS = ("PNG", "JPEG", "WEBP")  # that are decoded: others start programs (EPS), or are seldom tried


def decoded(held: bytes) -> Image.Image:
    """Decode an image file to RGB. Pillow converts grey, CMYK and palette images, and leaves transparency out.
    Of 16 bits a channel the upper 8 are taken. A JPEG that carries further pictures, as telephones write them, is its
    first one.

    Args:
        held: the content of the file.

    Raises:
        ValueError: it is no PNG, JPEG or WebP, is damaged or cut short, or is animated.
    """
    accepted = "accepted are whole PNG, JPEG and WebP files of one frame"
    if not held:
        raise ValueError(f"the file is empty; {accepted}")
    try:
        with Image.open(io.BytesIO(held), formats=FORMATS) as picture:
            frames = 1 if picture.format == "MPO" else getattr(picture, "n_frames", 1)
            if frames == 1:
                picture.verify()  # the checksums of a PNG; what is verified cannot be read on
        with Image.open(io.BytesIO(held), formats=FORMATS) as picture:
            if frames == 1:
                return _rgb(picture)
    except Exception as error:  # decoders raise all kinds
        why = "it is of no accepted format" if isinstance(error, Image.UnidentifiedImageError) else error
        raise ValueError(f"{why}; {accepted}") from error
    raise ValueError(f"it is animated, with {frames} frames; {accepted}")


def pixels(picture: Image.Image, size: int) -> torch.Tensor:
    """Cut out the central square of an RGB picture and resize it: uint8 (3, size, size)."""
    side = min(picture.size)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    square = picture.crop((left, top, left + side, top + side)).resize((size, size), Image.Resampling.LANCZOS)
    return torch.from_numpy(np.asarray(square).copy()).permute(2, 0, 1)


def _rgb(picture):
    if picture.mode.startswith("I"):  # grey in 16 bits, of which Pillow makes 255 wherever it is more
        picture = Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
    if picture.mode == "P" and "transparency" in picture.info:
        picture = picture.convert("RGBA")  # else Pillow warns
    return picture.convert("RGB")
