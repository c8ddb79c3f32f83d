"""Capture sessions: what a model computes, recorded without changing it.

A session hooks every module of a model (:mod:`~precision_align.recording.session`), follows the calls
(``calls``), copies tensors (``staging``), watches gradients on the autograd nodes that a call made (``gradients``),
wraps the optimizers' ``step`` (``optimizers``) and ``torch.autograd.backward`` (``losses``, ``passes``), and
hands all of it to a sink (``tape``). What the records of each kind look like:

========== ========== ======== ============================ ==================================================
source     role       phase    path                         what
========== ========== ======== ============================ ==================================================
module     input      forward  args.0, kwargs.mask          before the call
module     output     forward  "" or 0, last.1              after the call
module     buffer     forward  before.NAME, after.NAME      own buffers; "after" only where it changed
module     gradient   backward output, output.0             of an output
module     gradient   backward input.args.0                 this call's share of an input's gradient
module     gradient   backward parameter.NAME               this call's share of an own parameter's gradient
parameters parameter  forward  NAME                         at the step's start; scope is the owning module
parameters buffer     forward  NAME                         at the step's start
parameters gradient   backward NAME                         the total, where no optimizer step records it
optimizer  gradient   step     NAME                         as ``step()`` saw it
optimizer  parameter  step     NAME                         after ``step()``
optimizer  state      step     before.exp_avg.NAME, after.… where the optimizer has a torch-like ``state``
point      loss       forward  loss                         scalars that ``backward()`` started from
point      output     forward  NAME                         ``recorder.save(NAME, tensor)``
========== ========== ======== ============================ ==================================================

``ordinal`` numbers backward passes through the same call (``retain_graph``), backward passes for totals, optimizers,
and losses. A gradient has the step, micro-batch and call of its forward. Keys in ``extra``:

- ``same_as``: this output is that very tensor, unchanged: "input.args.0", "output.0" of the same call, or a child's,
  "SCOPE@CALL:output.0";
- ``share``: summed over this call's own uses only; ``also``: the same tensor came at these paths too, and the share is
  of all of them together;
- ``shared``: the opposite, a total over all uses (an output that was made before the call, such as an input);
- ``recomputed``: taken from the repetition by a reentrant checkpoint, which alone has gradients;
- ``parts``: a sparse or nested tensor; the named components are records of their own at "PATH#NAME";
- ``expanded``, ``qscheme``, ``scale``, ``zero_point``, ``axis``: of the tensor itself.

An optimizer's call has scope "optimizer:INDEX"; its arguments are described in ``optimizers``.
"""
