"""Triton kernels compiled for sm_100a, with no GPU: for the tests of peers, and for the scorecard."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def compile_kernel(
    function: Any,
    signature: Mapping[str, str],
    constants: Mapping[str, Any],
    *,
    make_source: Callable[..., Any] | None = None,
    **options: Any,
) -> Any:
    """What Triton's compiler makes of a kernel: its `asm` and `metadata`.

    `signature` gives types by the names of parameters, those of `constants` aside; make_source is another front end's
    (Gluon's). ImportError where Triton is not installed.
    """
    triton, backend = importlib.import_module("triton"), importlib.import_module("triton.backends.compiler")
    make_source = make_source or importlib.import_module("triton.compiler").ASTSource
    types, names = {**signature, **dict.fromkeys(constants, "constexpr")}, function.arg_names
    source = make_source(
        function,
        {name: types[name] for name in names},
        {(names.index(name),): value for name, value in constants.items()},
        attrs={},
    )
    return triton.compile(source, target=backend.GPUTarget("cuda", 100, 32), options={"ptx_version": 90, **options})
