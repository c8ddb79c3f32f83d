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
point      gradient   backward NAME                         the total gradient that arrives at it
function   input …    as "module", of a function's call; ``op`` its name, ``ordinal`` which of its calls in the module's
aten       input …    of an operator; phase forward, backward or step; a written argument is at "written.PATH"
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

- ``shard``: placement, mesh and global shape of a DTensor, of which the record is this rank's part
  (:mod:`~precision_align.recording.shards`);
- ``function``, ``operator``: the identity of the call that the record belongs to.

Calls of functions and operators have scope "function:SCOPE" and "operator:SCOPE" with the scope of the module whose
call ran them, ``kind`` = the name, ``call`` = the ordinal, and in ``modes`` what else is known: "module_call";
"producers" (path of an input -> "IDENTITY:PATH" of the operator that wrote its memory last, or "state:NAME" of a
parameter or buffer); and of operators "phase", "stack" (the modules around) and "computes" (False for views and
uninitialised memory, which have no tensors). A second backward pass through a function's call has "~1" behind the path.
``modes["rng"]`` of a module's call holds the random generators' states before it, ``modes["rng_after"]`` those after it
where it drew from them.

An optimizer's call has scope "optimizer:INDEX"; its arguments are described in ``optimizers``.
"""
