"""A stand-in for CANN, on which the real torch_npu wheel imports, dispatches and trains without Ascend hardware.

- ``*.c``: the runtime: device memory is host memory, copies are asynchronous, nothing computes.
- ``building.py``: compiles it (one second) and loads it before torch_npu looks for CANN.
- ``kernels.py``: lets torch_npu's operators compute with the CPU's kernels.

Which operator goes where, which autocast rule holds, what torch_npu patches: all that is the real thing. The numbers
are the CPU's: nothing here says anything about the arithmetic of a device.
"""
