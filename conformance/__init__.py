"""Does the emulator do what the hardware does?

Probes are small PTX files that each ask something of TMA, mbarriers, wgmma or arithmetic. The runner
executes the same text with the same inputs on the emulator and on a GPU and compares every byte that
the launch may have written, guards around the buffers included. See `conformance/run.py --help`.
"""
