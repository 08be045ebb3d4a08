"""Play a Program's synchronisation through, with every warp, for some loop counts.

Only what decides who waits for whom is executed (`steering`): the integers that steer loops and stages,
the barriers, the memory that asynchronous operations read and write. Every warp keeps what it knows to
be finished (`knowledge`), and barriers pass that knowledge on; memory may be used again only by a warp
that knows its last use to be over (`hazards`). `simulation` plays the warps of a `cluster`; what an op
in which no warp waits means is a function in the module of its noun: `registers`, `mbarriers`, `copies`,
`launch_control`, `tensor_core`.

Warps run as far as they can, in turn, and that order stands for all others: who ends a phase of a
barrier must know that all who waited for the phase before have seen its end, and who arrives must
know that the phase before is over. So each arrival falls into the same phase and each wait sees it,
however fast or slow a warp is, and what is known at each op does not depend on the order.
"""
