/* The twin of recording/calls.py for the common call: below another, outside of a backward pass, not a replica. */
#ifndef PA_CALLS_H
#define PA_CALLS_H

#include "taps.h"

/* A text with a prefix: prefixed(prefix, path), remembered; borrowed, NULL with an exception. */
static PyObject *join(Lane *self, PyObject *known, const char *prefix, PyObject *path) {
    PyObject *joined = PyDict_GetItemWithError(known, path);
    if (joined || PyErr_Occurred()) return joined;
    PyObject *made = PyObject_CallFunction(self->prefixed, "sO", prefix, path);
    if (!made) return NULL;
    if (PyDict_GET_SIZE(known) > 1 << 14) PyDict_Clear(known);
    int failed = PyDict_SetItem(known, path, made);
    Py_DECREF(made);
    return failed ? NULL : made;
}

/* File and line of the innermost code that is neither torch's nor ours; twin of caller_line. */
static PyObject *find_caller(Lane *self) {
    PyFrameObject *frame = PyThreadState_GetFrame(PyThreadState_Get());
    while (frame) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        PyObject *name = code->co_filename, *known = PyDict_GetItemWithError(self->libraries, name);
        if (!known && !PyErr_Occurred()) {
            known = PyObject_CallOneArg(self->is_library, name);
            if (known && PyDict_SetItem(self->libraries, name, known)) Py_CLEAR(known);
            Py_XDECREF(known); /* True and False do not go */
        }
        PyObject *found = known == Py_False ? PyUnicode_FromFormat("%U:%d", name, PyFrame_GetLineNumber(frame)) : NULL;
        Py_DECREF(code);
        PyFrameObject *back = found || PyErr_Occurred() ? NULL : PyFrame_GetBack(frame);
        int ended = found || PyErr_Occurred();
        Py_DECREF(frame);
        if (ended) return found;
        frame = back;
    }
    return hold(self->empty_text);
}

/* What may change from call to call; twin of call_modes. */
static PyObject *find_modes(Lane *self) {
    int inference = is_true(call_nothing(self->inference));
    PyObject *dtype = inference < 0 ? NULL : call_nothing(self->default_dtype);
    if (!dtype) return NULL;
    if (inference || dtype != self->dtype) {
        PyObject *modes = call_nothing(self->call_modes);
        if (modes && !inference) {
            put(&self->dtype, hold(dtype));
            put(&self->modes, hold(modes));
        }
        Py_DECREF(dtype);
        return modes;
    }
    Py_DECREF(dtype);
    return hold(self->modes);
}

/* Whether the CPU has the only generator in use, and no mode looks on; see recording/randomness.py. */
static int is_alone(Lane *self) {
    int other = PyDict_Contains(self->loaded_modules, torch_npu);
    if (other) return other < 0 ? -1 : 0;
    int initialized = attribute_is_true(self->cuda, private_initialized);
    if (initialized) return initialized < 0 ? -1 : 0;
    long long functions = to_number(call_nothing(self->num_function_modes));
    long long dispatches = functions ? 0 : to_number(call_nothing(self->num_dispatch_modes));
    return PyErr_Occurred() ? -1 : !functions && !dispatches;
}

/* States of the generators; twin of describe_generators, one object as long as nothing was drawn. */
static PyObject *find_random(Lane *self) {
    int alone = is_alone(self);
    if (alone < 0) return NULL;
    if (!alone) return call_nothing(self->describe_generators);
    PyObject *state = call_nothing(self->get_state);
    long long now = state ? to_number(call_method(state, name_data_ptr)) : -1;
    long long size = state && now != -1 ? to_number(PyObject_GetAttr(state, name_nbytes)) : -1;
    if (PyErr_Occurred() || !now) {
        PyErr_Clear(); /* inside a transform */
        Py_XDECREF(state);
        return call_nothing(self->describe_generators);
    }
    if (self->state) {
        long long before = to_number(call_method(self->state, name_data_ptr));
        if (before > 0 && !memcmp((void *)(uintptr_t)before, (void *)(uintptr_t)now, (size_t)size)) {
            Py_DECREF(state);
            return hold(self->random);
        }
        PyErr_Clear();
    }
    PyObject *random = call_nothing(self->describe_generators);
    if (random) {
        put(&self->state, hold(state));
        put(&self->random, hold(random));
    }
    Py_DECREF(state);
    return random;
}

/* The running calls of this thread outside of backward passes, borrowed; those of the main thread, which never ends and
 * whose number is never another's, are remembered. */
static PyObject *find_frames(Lane *self) {
    unsigned long thread = PyThread_get_thread_ident();
    if (self->frames && self->thread == thread) return self->frames;
    PyObject *frames = PyObject_GetAttr(self->calls, name_frames);
    if (!frames) return NULL;
    if (!PyList_CheckExact(frames)) {
        Py_DECREF(frames);
        PyErr_SetString(PyExc_TypeError, "the running calls are not a list");
        return NULL;
    }
    if (self->thread == thread) put(&self->frames, hold(frames));
    Py_DECREF(frames); /* the thread's storage holds it */
    return frames;
}

/* Whether a call is one of those followed here: 1, 0 or -1 with an exception. */
static int is_common(Lane *self, PyObject *module) {
    if (GET(clock, self->clock, recording) != Py_True) return 0;
    PyObject *tracing = call_nothing(self->tracing);
    Py_XDECREF(tracing);
    if (tracing != Py_None) return tracing ? 0 : -1;
    long long task = to_number(call_nothing(self->graph_task));
    if (task != -1 || PyErr_Occurred()) return PyErr_Occurred() ? -1 : 0;
    PyObject *mark = own_entry(module, replica_mark);
    if (!mark) return PyErr_Occurred() ? -1 : 1;
    return mark == Py_False;
}

static PyObject *find_site(Lane *self, PyObject *module, PyObject *scope) {
    PyObject *site = PyDict_GetItemWithError(self->sites, scope);
    if (site && GET(site, site, module) == module) return hold(site);
    if (PyErr_Occurred()) return NULL;
    PyObject *arguments[] = {self->calls, module, scope};
    return PyObject_VectorcallMethod(private_find_site, arguments, 3, NULL);
}

/* The place of the next call of a module in this batch, and its number among all calls of the step. */
static PyObject *next_place(Lane *self, PyObject *scope, PyObject **identity) {
    PyObject *step = GET(clock, self->clock, step), *micro = GET(clock, self->clock, micro), *place = NULL;
    PyObject *zero = PyLong_FromLong(0), *batch = PyLong_AsLongLong(micro) < 0 ? zero : micro, *count = NULL;
    PyObject *key = zero ? PyTuple_Pack(4, batch, scope, self->first, zero) : NULL;
    if (!key) goto done;
    PyObject *known = PyDict_GetItemWithError(self->numbers, key);
    if (!known && PyErr_Occurred()) goto done;
    PyObject *call = known ? hold(known) : hold(zero);
    count = PyLong_FromLongLong(PyLong_AsLongLong(call) + 1);
    if (count && !PyDict_SetItem(self->numbers, key, count) &&
        (place = ((PyTypeObject *)self->place_type)->tp_alloc((PyTypeObject *)self->place_type, 8))) {
        PyObject *items[] = {step, batch, scope, call, self->first, self->source, self->empty_text, zero};
        for (Py_ssize_t index = 0; index < 8; ++index) PyTuple_SET_ITEM(place, index, hold(items[index]));
    }
    Py_DECREF(call);
done:
    Py_XDECREF(key);
    Py_XDECREF(zero);
    Py_XDECREF(count);
    if (place && !(*identity = PyIter_Next(GET(clock, self->clock, identities)))) Py_CLEAR(place);
    return place;
}

static PyObject *find_shelf(Lane *self, PyObject *place) {
    PyObject *looks = PyTuple_GetSlice(place, 2, 7);
    if (!looks) return NULL;
    PyObject *shelf = hold(PyDict_GetItemWithError(self->shelves, looks));
    Py_DECREF(looks);
    if (shelf || PyErr_Occurred()) return shelf;
    return PyObject_CallMethodOneArg(self->tape, name_find_shelf, place);
}

static PyObject *new_targets(void) {
    Targets *targets = PyObject_New(Targets, &TargetsType);
    if (!targets) return NULL;
    targets->items = NULL;
    targets->count = targets->room = 0;
    targets->boundary = 0;
    return (PyObject *)targets;
}

static PyObject *find_autocast(Lane *self) {
    int on = is_true(call_nothing(self->autocast_on));
    return on < 0 ? NULL : on ? call_nothing(self->enabled_autocast) : hold(self->no_autocast);
}

static PyObject *flag(int answer) { return answer < 0 ? NULL : PyBool_FromLong(answer); }

/* The frame of a call that begins; ``tree`` and ``above`` are held. Twin of Frame. */
static PyObject *make_frame(Lane *self, PyObject *module, PyObject *scope, PyObject *above, PyObject *tree) {
    PyObject *frame = allocate(self->frame_type), *identity = NULL, *place, *site, *raised;
    if (!frame) return NULL;
    if (!(site = find_site(self, module, scope))) goto failed;
    SET(frame, frame, site, site);
    if (!(place = next_place(self, scope, &identity))) goto failed;
    SET(frame, frame, place, place);
    SET(frame, frame, identity, identity);
    SET(frame, frame, module, hold(module));
    SET(frame, frame, arguments, hold(tree));
    SET(frame, frame, parent, hold(GET(frame, above, identity)));
    SET(frame, frame, counted, hold(Py_False));
    SET(frame, frame, pair, hold(Py_None));
    SET(frame, frame, repeats, hold(Py_None));
    SET(frame, frame, replica, hold(Py_None));
    raised = handled_exception();
    SET(frame, frame, raised_before, raised ? raised : hold(Py_None));
    if (!(GET(frame, frame, shelf) = find_shelf(self, place))) goto failed;
    if (!(GET(frame, frame, enter) = PyLong_FromLongLong(((Tray *)self->tray)->order++))) goto failed;
    if (!(GET(frame, frame, origin) = find_caller(self))) goto failed;
    if (!(GET(frame, frame, autocast) = find_autocast(self))) goto failed;
    if (!(GET(frame, frame, modes) = find_modes(self))) goto failed;
    if (!(GET(frame, frame, random) = find_random(self))) goto failed;
    if (!(GET(frame, frame, training) = flag(attribute_is_true(module, name_training)))) goto failed;
    if (!(GET(frame, frame, grad_enabled) = flag(is_true(call_nothing(self->grad_enabled))))) goto failed;
    if (!(GET(frame, frame, targets) = new_targets())) goto failed;
    if (!(GET(frame, frame, seen) = PyDict_New())) goto failed;
    if (!(GET(frame, frame, buffers) = PyDict_New())) goto failed;
    return frame;
failed:
    Py_DECREF(frame);
    return NULL;
}

/* Twin of Sighting.of and Sighting.loosely; ``staged`` may be NULL, else ``loosely`` says how it is held. */
static PyObject *make_sighting(Lane *self, PyObject *tensor, PyObject *path, PyObject *staged, int loosely) {
    PyObject *sighting = allocate(self->sighting_type);
    if (!sighting) return NULL;
    PyObject *version = PyObject_GetAttr(tensor, private_version);
    if (!version && PyErr_ExceptionMatches(PyExc_RuntimeError)) { /* inference tensors do not count */
        PyErr_Clear();
        version = hold(self->minus_one);
    }
    SET(sighting, sighting, path, hold(path));
    SET(sighting, sighting, version, version);
    SET(sighting, sighting, reference, PyWeakref_NewRef(tensor, NULL));
    SET(sighting, sighting, staged, !staged ? hold(Py_None) : loosely ? PyWeakref_NewRef(staged, NULL) : hold(staged));
    if (PyErr_Occurred()) Py_CLEAR(sighting);
    return sighting;
}

static PyObject *find_seen(PyObject *seen, PyObject *tensor) {
    PyObject *id = PyLong_FromVoidPtr(tensor);
    PyObject *known = id ? PyDict_GetItemWithError(seen, id) : NULL;
    Py_XDECREF(id);
    return known;
}

static int set_seen(Lane *self, PyObject *seen, PyObject *tensor, PyObject *path, PyObject *staged, int loosely) {
    PyObject *id = PyLong_FromVoidPtr(tensor);
    PyObject *sighting = id ? make_sighting(self, tensor, path, staged, loosely) : NULL;
    int failed = !sighting || PyDict_SetItem(seen, id, sighting);
    Py_XDECREF(id);
    Py_XDECREF(sighting);
    return failed ? -1 : 0;
}

static int has_version_of(Lane *self, PyObject *sighting, PyObject *tensor) {
    PyObject *before = GET(sighting, sighting, version);
    long long number = PyLong_AsLongLong(before);
    if (number == -1) return PyErr_Occurred() ? -1 : 0;
    long long now = to_number(PyObject_GetAttr(tensor, private_version));
    if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_RuntimeError)) PyErr_Clear();
    return PyErr_Occurred() ? -1 : number == now;
}

/* Whether the bits are the same; twin of same_bits behind what can be told by a look. */
static int holds_bits(Lane *self, PyObject *before, PyObject *staged) {
    Copier *copier = (Copier *)self->copier;
    if (before == Py_None) return 0;
    if (before == staged) return 1;
    if (SLOT(before, copier->at_form) == SLOT(staged, copier->at_form)) {
        PyObject *left = SLOT(before, copier->at_address), *right = SLOT(staged, copier->at_address);
        if (left == right && PyLong_AsVoidPtr(left)) return 1;
    }
    PyObject *arguments[] = {staged, before};
    return is_true(PyObject_Vectorcall(self->same_bits, arguments, 2, NULL));
}

/* Whether this tensor is the remembered one, unchanged; twin of Sighting.holds. */
static int sighting_holds(Lane *self, PyObject *sighting, PyObject *tensor, PyObject *staged) {
    PyObject *there = dereference(GET(sighting, sighting, reference));
    Py_XDECREF(there);
    if (there != tensor) return 0;
    int same = has_version_of(self, sighting, tensor);
    if (same <= 0) return same;
    PyObject *before = GET(sighting, sighting, staged);
    if (before == Py_None || !staged || SLOT(staged, ((Copier *)self->copier)->at_summary) != Py_None) return 1;
    if (!PyWeakref_CheckRef(before)) return holds_bits(self, before, staged);
    before = dereference(before);
    same = before ? holds_bits(self, before, staged) : 0;
    Py_XDECREF(before);
    return same;
}

#endif
