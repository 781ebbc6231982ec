"""Which axis of images has the channels."""

CHANNELS = (1, 3, 4)
"""Numbers of channels of grey, RGB and RGBA images."""


def channels_last(shape: tuple[int, ...]) -> bool:
    """Return whether a sample of this shape looks like (height, width, channels) instead of (channels, height, width).

    The last axis has to be shorter than the middle one: 3 x 3 pixels can have any number of channels.
    """
    if len(shape) != 3:
        return False
    first, middle, last = shape
    return last in CHANNELS and middle > last and first not in CHANNELS
