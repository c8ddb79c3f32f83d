/* Hooks on autograd nodes: the twin of recording/gradients.py where a gradient comes in one piece. */
#ifndef PA_TAPS_H
#define PA_TAPS_H

#include "graph.h"

/* One gradient to record. ``tap``: a Python Tap for one that comes in several pieces, else NULL. */
typedef struct {
    Py_ssize_t index;
    PyObject *tap, *slot, *path, *extra, *dtype;
    long long passes;
} Entry;

typedef struct {
    PyObject_VAR_HEAD
    vectorcallfunc vectorcall;
    Lane *lane;
    PyObject *shelf, *place;
    long long generation;
    Entry entries[1];
} NodeHook;

static PyTypeObject NodeHookType;

/* Not for the cyclic collector: what a hook holds does not lead back to the graph that holds it. */
static void hook_dealloc(NodeHook *self) {
    Py_CLEAR(self->lane);
    Py_CLEAR(self->shelf);
    Py_CLEAR(self->place);
    for (Py_ssize_t index = 0; index < Py_SIZE(self); ++index) {
        Entry *entry = &self->entries[index];
        Py_CLEAR(entry->tap);
        Py_CLEAR(entry->slot);
        Py_CLEAR(entry->path);
        Py_CLEAR(entry->extra);
        Py_CLEAR(entry->dtype);
    }
    Py_TYPE(self)->tp_free(self);
}

static PyObject *cast_gradient(Lane *self, Entry *entry, PyObject *gradient) {
    if (!entry->dtype) return hold(gradient);
    PyObject *dtype = PyObject_GetAttr(gradient, name_dtype);
    if (!dtype) return NULL;
    Py_DECREF(dtype); /* dtypes live as long as torch */
    if (dtype == entry->dtype) return hold(gradient);
    PyObject *arguments[] = {self->ledger, gradient, entry->dtype};
    return PyObject_VectorcallMethod(name_cast, arguments, 3, NULL);
}

static PyObject *find_gradient_slot(Lane *self, NodeHook *hook, Entry *entry) {
    if (!entry->passes) return hold(entry->slot);
    PyObject *number = PyLong_FromLongLong(entry->passes);
    if (!number) return NULL;
    PyObject *arguments[] = {hook->shelf, self->source, entry->path, number, entry->extra};
    PyObject *slot = PyObject_VectorcallMethod(name_gradient, arguments, 5, NULL);
    Py_DECREF(number);
    return slot;
}

static int take_entry(Lane *self, NodeHook *hook, Entry *entry, PyObject *gradient) {
    if (entry->tap) {
        PyObject *arguments[] = {self->ledger, entry->tap, gradient};
        PyObject *done = PyObject_VectorcallMethod(name_take_share, arguments, 3, NULL);
        Py_XDECREF(done);
        return done ? 0 : -1;
    }
    if (gradient == Py_None) return 0;
    PyObject *cast = cast_gradient(self, entry, gradient), *slot = cast ? find_gradient_slot(self, hook, entry) : NULL;
    entry->passes++;
    int failed = !slot || lane_take(self, hook->shelf, slot, PyTuple_GET_ITEM(hook->place, 0),
                                    PyTuple_GET_ITEM(hook->place, 1), cast);
    Py_XDECREF(slot);
    Py_XDECREF(cast);
    return failed ? -1 : 0;
}

/* Tell the dump that something of ours failed, and clear the exception. */
static void excuse(Lane *self, PyObject *where) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    PyObject *arguments[] = {self->tape, where ? where : Py_None, value ? value : Py_None};
    PyObject *done = where ? PyObject_VectorcallMethod(name_excuse, arguments, 3, NULL) : NULL;
    Py_XDECREF(done);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    PyErr_Clear();
}

/* A pre-hook gets the gradients of a node's outputs, a hook those of its inputs first. */
static PyObject *hook_call(NodeHook *hook, PyObject *const *args, size_t flags, PyObject *names) {
    Lane *self = hook->lane;
    if (!self || PyVectorcall_NARGS(flags) < 1 || !PyTuple_Check(args[0])) Py_RETURN_NONE;
    self->num_taken++;
    if (hook->generation != self->generation) {
        PyObject *done = call_method(self->ledger, name_note_late);
        Py_XDECREF(done);
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    for (Py_ssize_t index = 0; index < Py_SIZE(hook); ++index) {
        Entry *entry = &hook->entries[index];
        if (entry->index >= PyTuple_GET_SIZE(args[0])) continue;
        if (take_entry(self, hook, entry, PyTuple_GET_ITEM(args[0], entry->index))) {
            PyObject *where = PyUnicode_FromString("a gradient");
            excuse(self, where);
            Py_XDECREF(where);
            break;
        }
    }
    Py_RETURN_NONE;
}

static PyTypeObject NodeHookType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "precision_align.native.NodeHook",
    .tp_basicsize = offsetof(NodeHook, entries),
    .tp_itemsize = sizeof(Entry),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(NodeHook, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_dealloc = (destructor)hook_dealloc,
};

static NodeHook *make_hook(Lane *self, PyObject *shelf, PyObject *place, Py_ssize_t count) {
    NodeHook *hook = (NodeHook *)NodeHookType.tp_alloc(&NodeHookType, count); /* all zero */
    if (!hook) return NULL;
    hook->vectorcall = (vectorcallfunc)hook_call;
    hook->lane = (Lane *)hold((PyObject *)self);
    hook->shelf = hold(shelf);
    hook->place = hold(place);
    hook->generation = self->generation;
    return hook;
}

/* Fill in an entry; ``extra``: a dictionary. */
static int set_entry(Lane *self, NodeHook *hook, Entry *entry, Py_ssize_t index, PyObject *path, PyObject *extra,
                     PyObject *dtype) {
    entry->index = index;
    entry->path = hold(path);
    entry->extra = hold(extra);
    entry->dtype = hold(dtype);
    entry->slot = find_record(self, hook->shelf, self->backward, self->role_gradient, path, extra);
    return entry->slot ? 0 : -1;
}

static int hang(PyObject *node, PyObject *method, NodeHook *hook) {
    PyObject *handle = PyObject_CallMethodOneArg(node, method, (PyObject *)hook);
    Py_XDECREF(handle);
    return handle ? 0 : -1;
}

/* An output of a call. ``extra``: a dictionary or NULL; ``node``: that made it, or NULL. */
typedef struct {
    PyObject *path, *tensor, *extra, *node;
    long long number;
} Output;

/* Which outputs the same call computes others from: sets bits in ``inside``. */
static int find_used_inside(Output *outputs, Py_ssize_t count, Targets *targets, char *inside) {
    PyObject **roots = PyMem_Calloc(count, sizeof(PyObject *));
    Targets *own = PyObject_New(Targets, &TargetsType);
    Walk walk = {NULL, NULL, NULL, 0, 0};
    if (!own || !roots) goto failed;
    own->items = NULL;
    own->count = own->room = 0;
    own->boundary = targets->boundary;
    Py_ssize_t num_roots = 0;
    for (Py_ssize_t index = 0; index < count; ++index) {
        Output *output = &outputs[index];
        if (!output->node) continue;
        roots[num_roots++] = output->node;
        if (!find_target(own, output->node, output->number, 0) &&
            !append_target(own, output->node, output->number, output->node, output->path, NULL))
            goto failed;
    }
    if (own->count > 1 && find_consumers(&walk, roots, num_roots, own, 1)) goto failed;
    for (Py_ssize_t index = 0; index < count; ++index) {
        Target *known = find_target(own, outputs[index].node, outputs[index].number, 0);
        inside[index] = outputs[index].node && known && known->num_edges && known->path == outputs[index].path;
    }
    end_walk(&walk);
    PyMem_Free(roots);
    Py_DECREF(own);
    return 0;
failed:
    end_walk(&walk);
    PyMem_Free(roots);
    Py_XDECREF(own);
    return -1;
}

/* What the record of an output's gradient says besides; a new reference. */
static PyObject *describe_gradient(Lane *self, Output *output, Targets *targets, int inside) {
    long long sequence = sequence_of(output->node);
    if (sequence == -1 && PyErr_Occurred()) return NULL;
    int older = sequence < targets->boundary || find_target(targets, output->node, output->number, 0) != NULL;
    if (!output->extra && !older && !inside) return hold(self->nothing);
    PyObject *extra = output->extra ? PyDict_Copy(output->extra) : PyDict_New();
    if (extra && ((older && PyDict_SetItem(extra, name_shared, Py_True)) ||
                  (inside && PyDict_SetItem(extra, name_inside, Py_True))))
        Py_CLEAR(extra);
    return extra;
}

static int watch_outputs(Lane *self, PyObject *shelf, PyObject *place, Output *outputs, Py_ssize_t count,
                         Targets *targets, const char *inside) {
    for (Py_ssize_t first = 0; first < count; ++first) {
        PyObject *node = outputs[first].node;
        Py_ssize_t same = 0, earlier = 0;
        for (Py_ssize_t index = 0; node && index < count; ++index)
            if (outputs[index].node == node) index < first ? ++earlier : ++same;
        if (!node || earlier) continue;
        NodeHook *hook = make_hook(self, shelf, place, same);
        if (!hook) return -1;
        int failed = 0;
        for (Py_ssize_t index = first, slot = 0; !failed && index < count; ++index) {
            if (outputs[index].node != node) continue;
            PyObject *extra = describe_gradient(self, &outputs[index], targets, inside[index]);
            failed = !extra || set_entry(self, hook, &hook->entries[slot++], outputs[index].number, outputs[index].path,
                                         extra, NULL);
            Py_XDECREF(extra);
        }
        failed = failed || hang(node, name_register_prehook, hook);
        Py_DECREF(hook);
        if (failed) return -1;
    }
    return 0;
}

/* What the record of a share says besides; a new reference. */
static PyObject *describe_share(Lane *self, Target *target) {
    if (!target->also) return hold(self->share);
    PyObject *extra = PyDict_Copy(self->share);
    if (extra && PyDict_SetItem(extra, name_also, target->also)) Py_CLEAR(extra);
    return extra;
}

static int set_share(Lane *self, NodeHook *hook, Entry *entry, Edge *edge, Target *target, PyObject **taps) {
    PyObject *extra = describe_share(self, target), **tap = &taps[edge->target];
    int failed = !extra;
    if (!failed && target->num_edges == 1) {
        failed = set_entry(self, hook, entry, edge->index, target->path, extra, target->dtype);
    } else if (!failed) {
        if (!*tap) {
            PyObject *pieces = PyLong_FromSsize_t(target->num_edges);
            PyObject *arguments[] = {self->tape, hook->shelf, hook->place, target->path, extra, pieces, target->dtype};
            *tap = pieces ? PyObject_Vectorcall(self->tap_type, arguments, 7, NULL) : NULL;
            Py_XDECREF(pieces);
        }
        entry->index = edge->index;
        entry->tap = hold(*tap);
        failed = !*tap;
    }
    Py_XDECREF(extra);
    return failed ? -1 : 0;
}

static int watch_consumers(Lane *self, PyObject *shelf, PyObject *place, Walk *walk, Targets *targets) {
    PyObject **taps = PyMem_Calloc(targets->count + 1, sizeof(PyObject *));
    int failed = !taps;
    for (Py_ssize_t first = 0; !failed && first < walk->count; ++first) {
        PyObject *node = walk->edges[first].node;
        Py_ssize_t same = 0, earlier = 0;
        for (Py_ssize_t index = 0; index < walk->count; ++index)
            if (walk->edges[index].node == node) index < first ? ++earlier : ++same;
        if (earlier) continue;
        NodeHook *hook = make_hook(self, shelf, place, same);
        failed = !hook;
        for (Py_ssize_t index = first, slot = 0; !failed && index < walk->count; ++index) {
            Edge *edge = &walk->edges[index];
            if (edge->node == node)
                failed = set_share(self, hook, &hook->entries[slot++], edge, &targets->items[edge->target], taps);
        }
        failed = failed || hang(node, name_register_hook, hook);
        Py_XDECREF(hook);
    }
    for (Py_ssize_t index = 0; taps && index < targets->count; ++index) Py_XDECREF(taps[index]);
    PyMem_Free(taps);
    return failed ? -1 : 0;
}

/* Set the hooks for one finished call; twin of watch_call. */
static int watch_call(Lane *self, PyObject *shelf, PyObject *place, Output *outputs, Py_ssize_t count,
                      Targets *targets) {
    PyObject **roots = PyMem_Calloc(count + 1, sizeof(PyObject *));
    char *inside = PyMem_Calloc(count + 1, 1);
    Walk walk = {NULL, NULL, NULL, 0, 0};
    Py_ssize_t num_roots = 0;
    int failed = !roots || !inside;
    for (Py_ssize_t index = 0; !failed && index < count; ++index) {
        failed = find_origin(outputs[index].tensor, &outputs[index].node, &outputs[index].number);
        if (outputs[index].node) roots[num_roots++] = outputs[index].node;
    }
    failed = failed || (num_roots > 1 && find_used_inside(outputs, count, targets, inside)) ||
             watch_outputs(self, shelf, place, outputs, count, targets, inside) ||
             find_consumers(&walk, roots, num_roots, targets, 0) ||
             watch_consumers(self, shelf, place, &walk, targets);
    end_walk(&walk);
    PyMem_Free(roots);
    PyMem_Free(inside);
    return failed ? -1 : 0;
}

#endif
