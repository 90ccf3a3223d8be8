"""The lethal trifecta: private data, untrusted text and a way out, and where the three meet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Legs"]

Grade = Literal["none", "low", "high"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Legs:
    """What a tool touches.

    Parameters
    ----------
    private : bool
        It can read data that must not leave.
    untrusted : {"none", "soft", "hard"}
        Text that others may have written comes in through it.
    egress : {"none", "reviewed", "unreviewed"}
        What it can send out, and whether a person sees the payload first.
    destination : {"none", "vouched", "any"}
        Where it can send to: fixed places, or wherever the model says.
    """

    private: bool = False
    untrusted: Literal["none", "soft", "hard"] = "none"
    egress: Literal["none", "reviewed", "unreviewed"] = "none"
    destination: Literal["none", "vouched", "any"] = "none"
