/* The twin of recording/trays.py, and how records of the compiled path get there. */
#ifndef PA_RECORDS_H
#define PA_RECORDS_H

#include "copies.h"

/* What waits to be handed to the sink. */
typedef struct {
    PyObject_HEAD
    PyObject *items;
    Py_ssize_t nbytes;
    long long num_records, num_calls, order;
} Tray;

static int tray_init(Tray *self, PyObject *args, PyObject *kwargs) {
    put(&self->items, PyList_New(0));
    return self->items ? 0 : -1;
}

static void tray_dealloc(Tray *self) {
    Py_CLEAR(self->items);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *tray_tick(Tray *self, PyObject *Py_UNUSED(ignored)) {
    return PyLong_FromLongLong(self->order++);
}

static PyMemberDef tray_members[] = {
    {"items", T_OBJECT, offsetof(Tray, items), 0, NULL},
    {"nbytes", T_PYSSIZET, offsetof(Tray, nbytes), 0, NULL},
    {"num_records", T_LONGLONG, offsetof(Tray, num_records), 0, NULL},
    {"num_calls", T_LONGLONG, offsetof(Tray, num_calls), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef tray_methods[] = {
    {"tick", (PyCFunction)tray_tick, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject TrayType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "precision_align.native.Tray",
    .tp_basicsize = sizeof(Tray),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)tray_init,
    .tp_dealloc = (destructor)tray_dealloc,
    .tp_methods = tray_methods,
    .tp_members = tray_members,
};

/* What a session's Lane is given by name, see recording/lanes.py. */
#define GIVEN(X)                                                                                                       \
    X(tape) X(budget) X(calls) X(ledger) X(clock) X(tray) X(copier) X(stage) X(acquire) X(release) X(shelves) X(numbers)        \
    X(sites) X(enter) X(leave) X(place_type) X(frame_type) X(sighting_type) X(shelf_type) X(site_type) X(clock_type)   \
    X(draft_type) X(call_type) X(tap_type) X(tensor_type) X(parameter_type)              \
    X(torch_named_parameters) X(no_autocast) X(tensor_tree) X(one_tensor_tree) X(nothing) X(share)       \
    X(first) X(source) X(forward) X(backward) X(role_input) X(role_output) X(role_gradient) X(flatten_call)            \
    X(flatten_arguments) X(name_result) X(is_library) X(enabled_autocast) X(call_modes) X(describe_generators)         \
    X(default_dtype) X(inference) X(autocast_on) X(grad_enabled) X(graph_task) X(tracing) X(num_function_modes)        \
    X(num_dispatch_modes) X(sequence_position) X(get_state) X(same_bits) X(prefixed) X(loaded_modules) X(cuda)       \
    X(gradient_of)

/* Slots of the Python classes that the compiled path makes or reads. */
#define SLOTS(X)                                                                                                       \
    X(clock, step) X(clock, micro) X(clock, recording) X(clock, identities)                                            \
    X(shelf, slots) X(shelf, tier)                                                                \
    X(site, module) X(site, wanted) X(site, _class) X(site, _kind) X(site, _attributes) X(site, _values) X(site, _ids) \
    X(site, draws)                                                                                                     \
    X(sighting, path) X(sighting, reference) X(sighting, staged) X(sighting, version)                                  \
    X(draft, copy) X(draft, micro) X(draft, order) X(draft, reason) X(draft, slot) X(draft, step) X(draft, tier)       \
    X(frame, arguments) X(frame, autocast) X(frame, buffers) X(frame, counted) X(frame, enter) X(frame, grad_enabled)  \
    X(frame, identity) X(frame, modes) X(frame, module) X(frame, origin) X(frame, pair) X(frame, parent)               \
    X(frame, place) X(frame, raised_before) X(frame, random) X(frame, repeats) X(frame, replica) X(frame, seen)        \
    X(frame, shelf) X(frame, site) X(frame, targets) X(frame, training)

#define FIELD(name) PyObject *name;
#define OFFSET(type, name) Py_ssize_t type##_at_##name;

/* One session's compiled path. */
typedef struct {
    PyObject_HEAD
    GIVEN(FIELD)
    SLOTS(OFFSET)
    PyObject *frames;                       /* the running calls of the main thread, whose number is below */
    unsigned long thread;
    PyObject *state, *random;               /* the last generator state seen, and what was said of it */
    PyObject *dtype, *modes;                /* the default dtype, and what was said of the modes outside inference */
    PyObject *modes_seen, *random_seen, *modes_told; /* modes and random of the last call, and both in one */
    PyObject *empty_text, *minus_one, *libraries, *input_paths, *output_paths, *parameter_paths;
    Py_ssize_t batch_bytes, batch_items;
    long long generation, num_taken;
    int with_tensors, with_gradients;
} Lane;

#define GET(type, object, name) SLOT(object, self->type##_at_##name)
#define SET(type, object, name, stolen) SLOT(object, self->type##_at_##name) = (stolen)

static int lane_lock(Lane *self) {
    PyObject *answer = call_nothing(self->acquire);
    Py_XDECREF(answer);
    return answer ? 0 : -1;
}

/* Keeps an exception that is set. */
static void lane_unlock(Lane *self) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *answer = call_nothing(self->release);
    Py_XDECREF(answer);
    if (type || answer)
        PyErr_Restore(type, value, trace);
}

/* A copy of any tensor, a new reference. */
static PyObject *lane_stage(Lane *self, PyObject *tensor, PyObject *tier) {
    PyTypeObject *type = Py_TYPE(tensor);
    if ((PyObject *)type == self->tensor_type || (PyObject *)type == self->parameter_type) {
        long long modes = to_number(call_nothing(self->num_function_modes));
        if (modes == -1) return NULL;
        if (!modes) {
            PyObject *staged = copier_copy((Copier *)self->copier, tensor);
            if (staged && staged != Py_None) return staged;
            Py_XDECREF(staged);
            PyErr_Clear(); /* what cannot be copied is told by the other path */
        }
    }
    PyObject *arguments[] = {tensor, tier};
    return PyObject_Vectorcall(self->stage, arguments, 2, NULL);
}

/* The same inside of the lock, of a tensor of a call; twin of Tape.stage. */
static PyObject *lane_copy(Lane *self, PyObject *frame, PyObject *tensor) {
    PyObject *shelf = GET(frame, frame, shelf);
    if (lane_lock(self)) return NULL;
    PyObject *staged = lane_stage(self, tensor, GET(shelf, shelf, tier));
    lane_unlock(self);
    return staged;
}

/* Hand a copy over, inside of the lock; twin of Tape._append. */
static int lane_append(Lane *self, PyObject *shelf, PyObject *slot, PyObject *step, PyObject *micro, PyObject *staged) {
    Copier *copier = (Copier *)self->copier;
    PyObject *tier = GET(shelf, shelf, tier), *parts = SLOT(staged, copier->at_parts);
    int plain = SLOT(staged, copier->at_summary) == Py_None && PyTuple_CheckExact(parts) && !PyTuple_GET_SIZE(parts);
    if (!plain || self->budget != Py_None) {
        PyObject *arguments[] = {self->tape, shelf, slot, step, micro, staged, Py_None};
        PyObject *done = PyObject_VectorcallMethod(private_append, arguments, 7, NULL);
        Py_XDECREF(done);
        return done ? 0 : -1;
    }
    Tray *tray = (Tray *)self->tray;
    Py_ssize_t nbytes = bytes_of(copier, staged);
    PyObject *draft = nbytes >= 0 ? allocate_plain(self->draft_type) : NULL;
    PyObject *order = draft ? PyLong_FromLongLong(tray->order++) : NULL;
    if (!order) {
        Py_XDECREF(draft);
        return -1;
    }
    SET(draft, draft, copy, hold(staged));
    SET(draft, draft, micro, hold(micro));
    SET(draft, draft, order, order);
    SET(draft, draft, reason, hold(self->empty_text));
    SET(draft, draft, slot, hold(slot));
    SET(draft, draft, step, hold(step));
    SET(draft, draft, tier, hold(tier));
    int failed = PyList_Append(tray->items, draft);
    Py_DECREF(draft);
    if (failed) return -1;
    tray->num_records++;
    tray->nbytes += nbytes;
    if (tray->nbytes < self->batch_bytes && PyList_GET_SIZE(tray->items) < self->batch_items) return 0;
    PyObject *done = call_method(self->tape, private_hand_on);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* Copy a tensor and hand it over; twin of Tape.take. */
static int lane_take(Lane *self, PyObject *shelf, PyObject *slot, PyObject *step, PyObject *micro, PyObject *tensor) {
    if (lane_lock(self)) return -1;
    PyObject *staged = lane_stage(self, tensor, GET(shelf, shelf, tier));
    int failed = !staged || lane_append(self, shelf, slot, step, micro, staged);
    Py_XDECREF(staged);
    lane_unlock(self);
    return failed ? -1 : 0;
}

/* The slot of a record of a module's call, a new reference; ``extra``: a dictionary or NULL. Twin of Shelf.find. */
static PyObject *find_record(Lane *self, PyObject *shelf, PyObject *phase, PyObject *role, PyObject *path,
                             PyObject *extra) {
    Py_ssize_t count = extra ? PyDict_GET_SIZE(extra) : 0, position = 0, index = 5;
    PyObject *looks = PyTuple_New(5 + count), *zero = looks ? PyLong_FromLong(0) : NULL, *key, *value;
    if (!zero) return NULL;
    PyTuple_SET_ITEM(looks, 0, hold(self->source));
    PyTuple_SET_ITEM(looks, 1, hold(phase));
    PyTuple_SET_ITEM(looks, 2, hold(role));
    PyTuple_SET_ITEM(looks, 3, hold(path));
    PyTuple_SET_ITEM(looks, 4, hold(zero));
    while (extra && PyDict_Next(extra, &position, &key, &value)) {
        PyObject *item = PyTuple_Pack(2, key, value);
        if (!item) {
            Py_DECREF(looks);
            Py_DECREF(zero);
            return NULL;
        }
        PyTuple_SET_ITEM(looks, index++, item);
    }
    PyObject *slot = hold(PyDict_GetItemWithError(GET(shelf, shelf, slots), looks));
    Py_DECREF(looks);
    if (!slot) {
        PyErr_Clear(); /* a list in extra has no hash: the other path knows */
        PyObject *arguments[] = {shelf, self->source, phase, role, path, zero, extra ? extra : self->nothing};
        slot = PyObject_VectorcallMethod(name_find, arguments, 7, NULL);
    }
    Py_DECREF(zero);
    return slot;
}

/* Hand over a copy that was made already; twin of Tape.put. */
static int lane_put(Lane *self, PyObject *shelf, PyObject *place, PyObject *role, PyObject *path, PyObject *staged,
                    PyObject *extra) {
    PyObject *slot = find_record(self, shelf, self->forward, role, path, extra);
    if (!slot || lane_lock(self)) {
        Py_XDECREF(slot);
        return -1;
    }
    int failed = lane_append(self, shelf, slot, PyTuple_GET_ITEM(place, 0), PyTuple_GET_ITEM(place, 1), staged);
    Py_DECREF(slot);
    lane_unlock(self);
    return failed;
}

#endif
