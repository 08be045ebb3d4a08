"""`ptxgen cache`."""

from __future__ import annotations

import click


@click.group()
def cache() -> None:
    """The cubins that ptxas made for launches (--compiler ptxas), kept on disk.

    PTXGEN_CACHE=0 switches the cache off, PTXGEN_CACHE_DIR moves it, PTXGEN_CACHE_MAX_MB limits it (256). What
    the driver compiles is in the driver's own cache: see CUDA_CACHE_PATH and CUDA_CACHE_DISABLE.
    """


@cache.command()
def info() -> None:
    """Say where it is and how full."""
    from ptxgen.device.cuda_cache import CubinCache

    found = CubinCache.from_environment()
    if found is None:
        click.echo("off (PTXGEN_CACHE)")
        return
    entries = found.entries()
    size = sum(size for _, size, _ in entries)
    click.echo(f"{found.folder}: {len(entries)} cubins, {size / 1e6:.1f} of {found.limit_bytes / 1e6:.0f} MB")


@cache.command()
def clear() -> None:
    """Delete what is in it."""
    from ptxgen.device.cuda_cache import CubinCache

    found = CubinCache.from_environment()
    if found is None:
        click.echo("off (PTXGEN_CACHE); nothing deleted")
        return
    click.echo(f"{found.folder}: {found.clear()} cubins deleted")
