"""What sort of work an instruction is: the nouns in which texts are summed up and explained."""

from __future__ import annotations

from functools import lru_cache

TENSOR_LOAD = "TMA load"
TENSOR_STORE = "TMA store"
BULK_COPY = "bulk copy"
CLAIM = "cluster claim"
MMA = "MMA"
COMMIT = "commit"
GROUP_WAIT = "wait for a group"
TMEM_ALLOCATION = "TMEM allocation"
TMEM_LOAD = "TMEM load"
TMEM_STORE = "TMEM store"
MBARRIER_INIT = "mbarrier init"
MBARRIER_ARRIVE = "mbarrier arrive"
MBARRIER_WAIT = "mbarrier wait"
NAMED_BARRIER = "CTA barrier"
CLUSTER_BARRIER = "cluster barrier"
FENCE = "fence"
SHARED_STORE = "SMEM store"
SHARED_LOAD = "SMEM load"
GLOBAL_ACCESS = "GMEM access"
REGISTER_BUDGET = "register budget"
WARP_OP = "warp operation"
CONVERSION = "conversion"
BRANCH = "branch"
ARITHMETIC = "arithmetic"

SYNCHRONISATION = (
    MBARRIER_INIT, MBARRIER_ARRIVE, MBARRIER_WAIT, NAMED_BARRIER, CLUSTER_BARRIER, FENCE, COMMIT, GROUP_WAIT,
)  # fmt: skip
WORK = (TENSOR_LOAD, TENSOR_STORE, BULK_COPY, MMA, TMEM_LOAD, TMEM_STORE, CLAIM)
"""What shows in a pipeline's outline."""

# The first prefix that fits decides.
_PREFIXES = (
    ("cp.async.bulk.commit_group", COMMIT),
    ("cp.async.bulk.wait_group", GROUP_WAIT),
    ("cp.async.bulk.prefetch", BULK_COPY),
    ("cp.async.mbarrier", MBARRIER_ARRIVE),
    ("cp.async.commit_group", COMMIT),
    ("cp.async.wait", GROUP_WAIT),
    ("cp.async", BULK_COPY),
    ("tcgen05.alloc", TMEM_ALLOCATION),
    ("tcgen05.dealloc", TMEM_ALLOCATION),
    ("tcgen05.relinquish", TMEM_ALLOCATION),
    ("tcgen05.mma", MMA),
    ("tcgen05.commit", COMMIT),
    ("tcgen05.wait", GROUP_WAIT),
    ("tcgen05.fence", FENCE),
    ("tcgen05.ld", TMEM_LOAD),
    ("tcgen05.st", TMEM_STORE),
    ("tcgen05.cp", TMEM_STORE),
    ("wgmma.mma_async", MMA),
    ("wgmma.commit_group", COMMIT),
    ("wgmma.wait_group", GROUP_WAIT),
    ("wgmma.fence", FENCE),
    ("mma.", MMA),
    ("wmma.", MMA),
    ("mbarrier.init", MBARRIER_INIT),
    ("mbarrier.inval", MBARRIER_INIT),
    ("mbarrier.try_wait", MBARRIER_WAIT),
    ("mbarrier.test_wait", MBARRIER_WAIT),
    ("mbarrier.", MBARRIER_ARRIVE),
    ("bar.warp", WARP_OP),
    ("bar.", NAMED_BARRIER),
    ("barrier.cluster", CLUSTER_BARRIER),
    ("barrier.", NAMED_BARRIER),
    ("fence.", FENCE),
    ("membar", FENCE),
    ("griddepcontrol", FENCE),
    ("clusterlaunchcontrol.try_cancel", CLAIM),
    ("st.shared", SHARED_STORE),
    ("stmatrix", SHARED_STORE),
    ("ld.shared", SHARED_LOAD),
    ("ldmatrix", SHARED_LOAD),
    ("ld.param", ARITHMETIC),
    ("ld.", GLOBAL_ACCESS),
    ("st.", GLOBAL_ACCESS),
    ("ldu", GLOBAL_ACCESS),
    ("atom", GLOBAL_ACCESS),
    ("red.async", MBARRIER_ARRIVE),
    ("red.", GLOBAL_ACCESS),
    ("setmaxnreg", REGISTER_BUDGET),
    ("elect", WARP_OP),
    ("shfl", WARP_OP),
    ("vote", WARP_OP),
    ("match", WARP_OP),
    ("redux", WARP_OP),
    ("movmatrix", WARP_OP),
    ("bra", BRANCH),
    ("brx", BRANCH),
    ("call", BRANCH),
    ("ret", BRANCH),
    ("exit", BRANCH),
    ("trap", BRANCH),
)


@lru_cache(maxsize=4096)
def kind_of(name: str) -> str:
    """The noun for an opcode with its modifiers."""
    if name.startswith(("cp.async.bulk.tensor", "cp.reduce.async.bulk.tensor")):
        return TENSOR_STORE if ".global.shared" in name else TENSOR_LOAD
    if name.startswith("cp.reduce.async.bulk"):
        return BULK_COPY
    for prefix, kind in _PREFIXES:
        if name.startswith(prefix):
            return kind
    if name.startswith("cvt.") and any(word in name for word in (".f16", ".bf16", ".f32", ".f64", ".e4m3", ".e5m2")):
        return CONVERSION
    return ARITHMETIC


def short_name(name: str) -> str:
    """An opcode without the modifiers that only name widths and state spaces."""
    kept = [word for word in name.split(".") if not word.startswith(("shared::", "b64", "cta_group", "mbarrier::"))]
    if name.startswith("cp.async.bulk.tensor"):
        return ".".join(kept[:5])
    return ".".join(kept)
