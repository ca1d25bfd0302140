"""Checkpoints of the Hugging Face Hub, in huggingface_hub's own cache. Never a second copy."""

from __future__ import annotations

import re
import textwrap

# What a checkpoint is read from; beside it lie other formats and the same weights once more.
_WANTED = ("*.json", "*.safetensors", "*.jinja")
_UNWANTED = ("*/*", "consolidated*")


def is_hub_name(name: str) -> bool:
    """Whether it has the form "organization/model"."""
    return re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name) is not None


def hub_folder(name: str) -> str:
    """The folder of the checkpoint `name` ("organization/model"), downloaded where it is not in
    the cache yet. With HF_HUB_OFFLINE=1, or without a network, what the cache holds will do.

    Raises ValueError saying what to do: huggingface_hub is not installed, or it cannot give the
    checkpoint, with its own words.
    """
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ValueError(
            f"model {name!r} is no path here, and a name of the Hugging Face Hub needs the package "
            f"huggingface_hub: install it, or give a path"
        ) from error
    try:
        return snapshot_download(name, allow_patterns=_WANTED, ignore_patterns=_UNWANTED)
    except Exception as error:  # of several libraries, with no base class of their own
        words = textwrap.shorten(str(error), width=240, placeholder=" ...")
        raise ValueError(
            f"model {name!r} is no path here, and huggingface_hub cannot give it: the name may be "
            f"wrong, or the network absent ({words})"
        ) from error
