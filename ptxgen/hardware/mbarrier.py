"""Limits of the mbarrier object (PTX ISA 9.1 §9.7.13.15)."""

from __future__ import annotations

OBJECT_BYTES = 8
OBJECT_ALIGN_BYTES = 8

MAX_COUNT = 2**20 - 1
"""Largest arrival count of `mbarrier.init` and largest pending count; the smallest init is 1."""

MAX_TX = 2**20 - 1
"""The transaction count of a phase stays within -MAX_TX..MAX_TX bytes."""
