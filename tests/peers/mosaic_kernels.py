# mypy: ignore-errors
"""Kernels in Pallas for Mosaic GPU in which the two CTAs of a cluster multiply together. No GPU is needed to compile.

    python mosaic_kernels.py KERNEL M N K FOLDER

writes FOLDER/kernel.ptx and FOLDER/launch.json. D[M, N] = A[M, K] · B[N, K]ᵀ in f16, with M a multiple of 256, N of
128 and K of 64. KERNEL is "once" or "cancelling", or "library": JAX's own product, of a B[K, N].
"""

import json
import os
import re
import sys
from pathlib import Path

ROWS, COLUMNS, DEPTH, STAGES, PART = 128, 128, 64, 3, 64
"""A CTA's rows of D, the columns of both, K of a stage, stages, and the columns that are stored at a time."""
B200 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 148 fpus_per_core: 128 block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535 block_dim_limit_z: 65535 memory_bandwidth: 8000000000000 l2_cache_size: 132644864
  clock_rate_ghz: 1.965 device_memory_size: 191000000000 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 10 minor: 0 } registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA"
device_description_str: "NVIDIA B200"
"""


def product(m, n, k, *, cancelling):
    """(A, B) -> D. One tile a cluster; `cancelling`: and those of clusters that it cancels."""
    import jax
    import jax.experimental.pallas as pl
    import jax.experimental.pallas.mosaic_gpu as plgpu
    import jax.numpy as jnp
    from jax import lax

    steps = k // DEPTH
    shared = plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128)

    def tile(a, b, d, a_ring, b_ring, staging, sums, loaded, released, finished, drained, m_tile, n_tile, count):
        rank = lax.axis_index("x")
        rows, columns = pl.ds(m_tile * 2 * ROWS, 2 * ROWS), pl.ds(n_tile * COLUMNS, COLUMNS)

        @pl.core_map(plgpu.WarpMesh(axis_name="warp"))
        def _():
            warp = lax.axis_index("warp")

            @pl.when(warp == 0)
            def _():
                @pl.loop(0, steps)
                def _(step):
                    stage = lax.rem(step, STAGES)

                    @pl.when((step >= STAGES) | (count > 0))
                    def _():
                        plgpu.barrier_wait(released.at[stage])

                    for source, ring, which in ((a, a_ring, rows), (b, b_ring, columns)):
                        plgpu.copy_gmem_to_smem(
                            source.at[which, pl.ds(step * DEPTH, DEPTH)],
                            ring.at[stage],
                            loaded.at[stage],
                            collective_axes="x",
                            leader_tracked=plgpu.CopyPartition.PARTITIONED(0),
                        )

            @pl.when((warp == 1) & (rank == 0))
            def _():
                @pl.when(count > 0)
                def _():
                    plgpu.barrier_wait(drained)

                @pl.loop(0, steps)
                def _(step):
                    stage = lax.rem(step, STAGES)
                    plgpu.barrier_wait(loaded.at[stage])
                    plgpu.tcgen05_mma(
                        sums,
                        a_ring.at[stage],
                        plgpu.transpose_ref(b_ring.at[stage], (1, 0)),
                        released.at[stage],
                        accumulate=step > 0,
                        collective_axis="x",
                    )

                plgpu.tcgen05_commit_arrive(finished, collective_axis="x")

        plgpu.barrier_wait(finished)
        mine = pl.ds(m_tile * 2 * ROWS + rank * ROWS, ROWS)
        for first in range(0, COLUMNS, PART):
            values = plgpu.async_load_tmem(sums.at[:, pl.ds(first, PART)])
            plgpu.wait_load_tmem()
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)
            staging[...] = values.astype(jnp.float16)
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(staging, d.at[mine, pl.ds(n_tile * COLUMNS + first, PART)])
        if cancelling:
            plgpu.barrier_arrive(drained)

    def once(*matrices, **scratch):
        tile(*matrices, **scratch, m_tile=lax.axis_index("m"), n_tile=lax.axis_index("n"), count=0)
        plgpu.wait_smem_to_gmem(0)

    def repeatedly(*matrices, **scratch):
        @plgpu.dynamic_scheduling_loop(grid_names=("m", "n"))
        def _(loop):
            m_tile, n_tile = loop.index
            tile(*matrices, **scratch, m_tile=m_tile, n_tile=n_tile, count=loop.local_index)

        plgpu.wait_smem_to_gmem(0)

    barrier = {"num_arrivals": 1, "orders_tensor_core": True}
    return plgpu.kernel(
        repeatedly if cancelling else once,
        out_type=jax.ShapeDtypeStruct((m, n), jnp.float16),
        grid=(m // (2 * ROWS), n // COLUMNS),
        grid_names=("m", "n"),
        cluster=(2,),
        cluster_names=("x",),
        scratch_types={
            "a_ring": plgpu.SMEM((STAGES, ROWS, DEPTH), jnp.float16, transforms=shared),
            "b_ring": plgpu.SMEM((STAGES, COLUMNS // 2, DEPTH), jnp.float16, transforms=shared),
            "staging": plgpu.SMEM((ROWS, PART), jnp.float16, transforms=shared),
            "sums": plgpu.TMEM((ROWS, COLUMNS), jnp.float32, collective=True),
            "loaded": plgpu.Barrier(num_arrivals=2, num_barriers=STAGES),
            "released": plgpu.Barrier(num_barriers=STAGES, **barrier),
            "finished": plgpu.Barrier(**barrier),
            "drained": plgpu.ClusterBarrier(collective_axes=("x",), **barrier),
        },
    )


def library_product(a, b):
    from jax.experimental.pallas.ops.gpu import blackwell_matmul_mgpu as library

    config = library.TuningConfig(
        tile_m=ROWS, tile_n=COLUMNS // 2, tile_k=DEPTH, max_concurrent_steps=STAGES, collective=True, epilogue_tile_n=32
    )
    return library.matmul_kernel(a, b, config)


def compile_for_b200(function, *shapes):
    """Compiles for a device that is not there; the compiler leaves its text where MOSAIC_GPU_DUMP_TO says."""
    import jax
    from jax.experimental import topologies
    from jax.experimental.mosaic.gpu import core

    core._infer_arch = lambda: (10, 0)
    topology = topologies.get_topology_desc("one B200", "cuda", topology="1x1x1", target_config=B200)
    place = jax.sharding.SingleDeviceSharding(topology.devices[0])
    jitted = jax.jit(function, in_shardings=(place,) * len(shapes), out_shardings=place)
    arguments = [jax.ShapeDtypeStruct(shape, "float16") for shape in shapes]
    jitted.trace(*arguments).lower(lowering_platforms=("cuda",)).compile()


def main(kernel, m, n, k, folder):
    os.environ |= {"JAX_PLATFORMS": "cpu", "MOSAIC_GPU_DUMP_PTX": "1", "MOSAIC_GPU_DUMP_MLIR_PASSES": "1"}
    os.environ["MOSAIC_GPU_DUMP_TO"] = folder
    m, n, k = int(m), int(n), int(k)
    if kernel == "library":
        compile_for_b200(library_product, (m, k), (k, n))
    else:
        compile_for_b200(product(m, n, k, cancelling=kernel == "cancelling"), (m, k), (n, k))
    (text,) = Path(folder).glob("*.ptx")
    (passes,) = Path(folder).glob("*.mlir-passes.log")
    launch = r"gpu.launch_func .* threads in \(%c(\d+), .* dynamic_shared_memory_size %c(\d+)_i32"
    threads, smem_bytes = re.search(launch, passes.read_text()).groups()
    text.rename(text.with_name("kernel.ptx"))
    facts = {"threads": int(threads), "dynamic_smem_bytes": int(smem_bytes)}
    Path(folder, "launch.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main(*sys.argv[1:])
