/* Entering and leaving a call. */
#ifndef PA_FOLLOWING_H
#define PA_FOLLOWING_H

#include "calls.h"

#define PATH(leaf) PyTuple_GET_ITEM(leaf, 0)
#define TENSOR(leaf) PyTuple_GET_ITEM(leaf, 1)

/* (tree, leaves): twin of the short ways of flatten_call and flatten_arguments; a new reference. */
static PyObject *flatten_call(Lane *self, PyObject *args, PyObject *kwargs) {
    if (PyTuple_CheckExact(args) && PyTuple_GET_SIZE(args) == 1 && PyDict_CheckExact(kwargs) &&
        !PyDict_GET_SIZE(kwargs) && (PyObject *)Py_TYPE(PyTuple_GET_ITEM(args, 0)) == self->tensor_type)
        return Py_BuildValue("(O((sO)))", self->one_tensor_tree, "args.0", PyTuple_GET_ITEM(args, 0));
    PyObject *arguments[] = {args, kwargs};
    return PyObject_Vectorcall(self->flatten_call, arguments, 2, NULL);
}

static PyObject *flatten_output(Lane *self, PyObject *output) {
    if ((PyObject *)Py_TYPE(output) == self->tensor_type)
        return Py_BuildValue("(O((sO)))", self->tensor_tree, "", output);
    return PyObject_CallOneArg(self->flatten_arguments, output);
}

/* The leaves of a flattened value as a tuple of pairs, a new reference. */
static PyObject *list_leaves(PyObject *flat) {
    if (!PyTuple_Check(flat) || PyTuple_GET_SIZE(flat) != 2) {
        PyErr_SetString(PyExc_TypeError, "not a tree with its leaves");
        return NULL;
    }
    return PySequence_Tuple(PyTuple_GET_ITEM(flat, 1));
}

static int add_parameters(Lane *self, PyObject *frame, PyObject *module, Targets *targets) {
    PyObject *method = PyObject_GetAttr((PyObject *)Py_TYPE(module), name_named_parameters), *name, *parameter;
    Py_XDECREF(method);
    if (!method) return -1;
    PyObject *own = own_entry(module, private_parameters);
    Py_ssize_t position = 0;
    if (method == self->torch_named_parameters && own && PyDict_Check(own) && PyDict_GET_SIZE(own)) {
        while (PyDict_Next(own, &position, &name, &parameter)) {
            if (parameter == Py_None) continue;
            PyObject *path = join(self, self->parameter_paths, "parameter", name);
            if (!path || add_target(targets, path, parameter)) return -1;
        }
        return 0;
    }
    if (PyErr_Occurred() || (method == self->torch_named_parameters && own)) return PyErr_Occurred() ? -1 : 0;
    PyObject *found = PyObject_CallMethod(GET(frame, frame, site), "own_parameters", NULL);
    PyObject *listed = found ? PySequence_Tuple(found) : NULL;
    int failed = !listed;
    for (Py_ssize_t index = 0; !failed && index < PyTuple_GET_SIZE(listed); ++index) {
        PyObject *pair = PyTuple_GET_ITEM(listed, index);
        PyObject *path = join(self, self->parameter_paths, "parameter", PATH(pair));
        failed = !path || add_target(targets, path, TENSOR(pair));
    }
    Py_XDECREF(found);
    Py_XDECREF(listed);
    return failed ? -1 : 0;
}

static int set_targets(Lane *self, PyObject *frame, PyObject *module, PyObject *leaves) {
    Targets *targets = (Targets *)GET(frame, frame, targets);
    for (Py_ssize_t index = 0; index < PyTuple_GET_SIZE(leaves); ++index) {
        PyObject *leaf = PyTuple_GET_ITEM(leaves, index), *path = join(self, self->input_paths, "input", PATH(leaf));
        if (!path || add_target(targets, path, TENSOR(leaf))) return -1;
    }
    if (add_parameters(self, frame, module, targets)) return -1;
    targets->boundary = to_number(call_nothing(self->sequence_position));
    return PyErr_Occurred() ? -1 : 0;
}

static int take_input(Lane *self, PyObject *frame, PyObject *leaf) {
    PyObject *tensor = TENSOR(leaf), *shelf = GET(frame, frame, shelf), *seen = GET(frame, frame, seen), *staged = NULL;
    if (self->with_tensors && !(staged = lane_copy(self, frame, tensor))) return -1;
    PyObject *known = find_seen(seen, tensor), *extra = NULL;
    int failed = PyErr_Occurred() != NULL;
    if (known) {
        extra = PyDict_New();
        failed = !extra || PyDict_SetItem(extra, name_same_as, GET(sighting, known, path));
    } else if (!failed) {
        PyObject *path = join(self, self->input_paths, "input", PATH(leaf));
        failed = !path || set_seen(self, seen, tensor, path, staged, 0);
    }
    if (staged && !failed)
        failed = lane_put(self, shelf, GET(frame, frame, place), self->role_input, PATH(leaf), staged, extra);
    Py_XDECREF(extra);
    Py_XDECREF(staged);
    return failed ? -1 : 0;
}

/* Let the Python twin do what is rare. */
static int delegate(Lane *self, PyObject *method, PyObject *frame, PyObject *more, PyObject *leaves) {
    PyObject *arguments[] = {self->calls, frame, more, leaves};
    PyObject *done = PyObject_VectorcallMethod(method, arguments, more ? (leaves ? 4 : 3) : 2, NULL);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

static int has_buffers(PyObject *module) {
    PyObject *buffers = own_entry(module, private_buffers);
    return buffers && PyDict_Check(buffers) && PyDict_GET_SIZE(buffers);
}

static int enter_call(Lane *self, PyObject *frames, PyObject *module, PyObject *scope, PyObject *args,
                      PyObject *kwargs) {
    PyObject *above = hold(PyList_GET_ITEM(frames, PyList_GET_SIZE(frames) - 1));
    PyObject *flat = flatten_call(self, args, kwargs), *leaves = flat ? list_leaves(flat) : NULL;
    PyObject *frame = leaves ? make_frame(self, module, scope, above, PyTuple_GET_ITEM(flat, 0)) : NULL;
    int failed = !frame, grads = frame && self->with_gradients && GET(frame, frame, grad_enabled) == Py_True;
    if (!failed && self->with_gradients && !grads) failed = delegate(self, private_relate, frame, above, leaves);
    failed = failed || PyList_Append(frames, frame);
    if (!failed && GET(site, GET(frame, frame, site), wanted) == Py_True) {
        if (grads) failed = set_targets(self, frame, module, leaves);
        for (Py_ssize_t index = 0; !failed && index < PyTuple_GET_SIZE(leaves); ++index)
            failed = take_input(self, frame, PyTuple_GET_ITEM(leaves, index));
        if (!failed && self->with_tensors && has_buffers(module))
            failed = delegate(self, private_take_buffers, frame, NULL, NULL);
    }
    Py_XDECREF(frame);
    Py_XDECREF(leaves);
    Py_XDECREF(flat);
    Py_DECREF(above);
    return failed ? -1 : 0;
}

static void excuse_call(Lane *self, const char *what, PyObject *scope) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *where = PyUnicode_FromFormat("%s of %R", what, scope);
    PyErr_Restore(type, value, trace);
    excuse(self, where);
    Py_XDECREF(where);
}

/* (module, scope, args, kwargs); returns what Recorder._enter would. */
static PyObject *lane_enter(Lane *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 4) return PyErr_Format(PyExc_TypeError, "enter takes 4 arguments, not %zd", count);
    int common = is_common(self, args[0]);
    PyObject *frames = common > 0 ? find_frames(self) : NULL;
    PyErr_Clear(); /* the other path tells what is wrong */
    if (!frames || !PyList_GET_SIZE(frames)) return PyObject_Vectorcall(self->enter, args, 4, NULL);
    if (enter_call(self, frames, args[0], args[1], args[2], args[3])) excuse_call(self, "the call", args[1]);
    Py_RETURN_NONE;
}

/* Where an output was seen before, a dictionary or NULL; twin of describe_origin. */
static int find_sameness(Lane *self, PyObject *known, PyObject *tensor, PyObject *staged, PyObject **extra) {
    *extra = NULL;
    if (!known) return 0;
    int same = sighting_holds(self, known, tensor, staged);
    PyObject *path = GET(sighting, known, path);
    if (same < 0) return -1;
    if (!same && PyUnicode_Check(path)) {
        const char *text = PyUnicode_AsUTF8(path);
        if (!text) return -1;
        if (strncmp(text, "input.", 6)) return 0;
    }
    *extra = PyDict_New();
    return *extra && !PyDict_SetItem(*extra, same ? name_same_as : name_overwrites, path) ? 0 : -1;
}

/* The caller's frame remembers what a child returned; twin of Frame.remember. */
static int remember(Lane *self, PyObject *above, PyObject *frame, PyObject *tensor, PyObject *local, PyObject *staged) {
    PyObject *seen = GET(frame, above, seen), *known = find_seen(seen, tensor), *place = GET(frame, frame, place);
    int holds = known ? sighting_holds(self, known, tensor, staged) : 0;
    if (holds || PyErr_Occurred()) return holds < 0 || PyErr_Occurred() ? -1 : 0;
    PyObject *arguments[] = {PyTuple_GET_ITEM(place, 2), PyTuple_GET_ITEM(place, 3), local};
    PyObject *name = PyObject_Vectorcall(self->name_result, arguments, 3, NULL);
    int failed = !name || set_seen(self, seen, tensor, name, staged, 1);
    Py_XDECREF(name);
    return failed ? -1 : 0;
}

static int take_output(Lane *self, PyObject *frame, PyObject *above, PyObject *leaf, int several, Output *output) {
    PyObject *tensor = TENSOR(leaf), *shelf = GET(frame, frame, shelf), *seen = GET(frame, frame, seen), *staged = NULL;
    if (self->with_tensors && !(staged = lane_copy(self, frame, tensor))) return -1;
    PyObject *known = hold(find_seen(seen, tensor));
    output->tensor = hold(tensor);
    output->path = hold(join(self, self->output_paths, "output", PATH(leaf)));
    int failed = !output->path || find_sameness(self, known, tensor, staged, &output->extra);
    if (!failed && staged)
        failed = lane_put(self, shelf, GET(frame, frame, place), self->role_output, PATH(leaf), staged, output->extra);
    if (!failed && several) failed = set_seen(self, seen, tensor, output->path, staged, 0);
    failed = failed || remember(self, above, frame, tensor, output->path, staged);
    Py_XDECREF(known);
    Py_XDECREF(staged);
    return failed ? -1 : 0;
}

static Py_ssize_t count_entries(PyObject *module, PyObject *name) {
    PyObject *entries = own_entry(module, name);
    Py_ssize_t size = entries ? PyObject_Size(entries) : 0;
    if (size < 0) PyErr_Clear();
    return size;
}

/* Twin of Site.is_stock: one hook before a call and one after it are ours. */
static int is_stock(PyObject *module) {
    if (count_entries(module, private_forward_hooks) + count_entries(module, private_forward_pre_hooks) > 2) return 0;
    if (count_entries(module, private_modules)) return 0;
    PyObject *name = PyObject_GetAttr((PyObject *)Py_TYPE(module), name_module);
    const char *text = name && PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : NULL;
    int stock = text && !strncmp(text, "torch.nn.modules.", 17);
    PyErr_Clear();
    Py_XDECREF(name);
    return stock;
}

static int is_returned(Output *outputs, Py_ssize_t count, PyObject *tensor) {
    for (Py_ssize_t index = 0; index < count; ++index)
        if (outputs[index].tensor == tensor) return 1;
    return 0;
}

static int put_written(Lane *self, PyObject *frame, PyObject *sighting, PyObject *staged) {
    PyObject *path = GET(sighting, sighting, path), *rest = PyUnicode_Substring(path, 6, PyUnicode_GET_LENGTH(path));
    PyObject *written = rest ? PyObject_CallFunction(self->prefixed, "sO", "written", rest) : NULL;
    PyObject *extra = written ? PyDict_New() : NULL;
    int failed = !extra || PyDict_SetItem(extra, name_overwrites, path) ||
                 lane_put(self, GET(frame, frame, shelf), GET(frame, frame, place), self->role_output, written, staged, extra);
    Py_XDECREF(rest);
    Py_XDECREF(written);
    Py_XDECREF(extra);
    return failed ? -1 : 0;
}

/* One thing seen: an input that the call may have written into without returning it. */
static int take_written_input(Lane *self, PyObject *frame, PyObject *sighting, Output *outputs, Py_ssize_t count,
                              int stock) {
    const char *path = PyUnicode_AsUTF8(GET(sighting, sighting, path));
    if (!path || strncmp(path, "input.", 6)) return path ? 0 : -1;
    PyObject *tensor = dereference(GET(sighting, sighting, reference)), *staged = NULL;
    int same = !tensor || is_returned(outputs, count, tensor) ? 1 : stock ? has_version_of(self, sighting, tensor) : 0;
    int failed = same < 0;
    if (!same) {
        staged = lane_copy(self, frame, tensor);
        same = staged ? sighting_holds(self, sighting, tensor, staged) : -1;
        failed = same < 0 || (!same && put_written(self, frame, sighting, staged));
    }
    Py_XDECREF(staged);
    Py_XDECREF(tensor);
    return failed ? -1 : 0;
}

/* Inputs that the call wrote into without returning them (a cache); twin of _take_written_inputs. */
static int take_written(Lane *self, PyObject *frame, Output *outputs, Py_ssize_t count) {
    if (!self->with_tensors) return 0;
    PyObject *sightings = PyDict_Values(GET(frame, frame, seen));
    int failed = !sightings, stock = is_stock(GET(frame, frame, module));
    for (Py_ssize_t index = 0; !failed && index < PyList_GET_SIZE(sightings); ++index)
        failed = take_written_input(self, frame, PyList_GET_ITEM(sightings, index), outputs, count, stock);
    Py_XDECREF(sightings);
    return failed ? -1 : 0;
}

static int take_outputs(Lane *self, PyObject *frame, PyObject *above, PyObject *leaves) {
    Py_ssize_t count = PyTuple_GET_SIZE(leaves);
    Output *outputs = PyMem_Calloc(count + 1, sizeof(Output));
    PyObject *module = GET(frame, frame, module);
    int failed = !outputs;
    for (Py_ssize_t index = 0; !failed && index < count; ++index)
        failed = take_output(self, frame, above, PyTuple_GET_ITEM(leaves, index), count > 1, &outputs[index]);
    failed = failed || take_written(self, frame, outputs, count);
    if (!failed && self->with_tensors && has_buffers(module))
        failed = delegate(self, private_take_changed_buffers, frame, NULL, NULL);
    if (!failed && self->with_gradients && GET(frame, frame, grad_enabled) == Py_True)
        failed = watch_call(self, GET(frame, frame, shelf), GET(frame, frame, place), outputs, count,
                            (Targets *)GET(frame, frame, targets));
    for (Py_ssize_t index = 0; outputs && index < count; ++index) {
        Py_XDECREF(outputs[index].path);
        Py_XDECREF(outputs[index].tensor);
        Py_XDECREF(outputs[index].extra);
        Py_XDECREF(outputs[index].node);
    }
    PyMem_Free(outputs);
    return failed ? -1 : 0;
}

/* The modes with the generators' states, one object while nothing changes; twin of _describe_modes. */
static PyObject *tell_modes(Lane *self, PyObject *frame, PyObject *drawn) {
    PyObject *modes = GET(frame, frame, modes), *random = GET(frame, frame, random);
    if (drawn == random && modes == self->modes_seen && random == self->random_seen) return hold(self->modes_told);
    PyObject *arguments[] = {self->calls, frame, drawn};
    PyObject *told = PyObject_VectorcallMethod(private_describe_modes, arguments, 3, NULL);
    if (told && drawn == random) {
        put(&self->modes_seen, hold(modes));
        put(&self->random_seen, hold(random));
        put(&self->modes_told, hold(told));
    }
    return told;
}

static PyObject *find_kind(Lane *self, PyObject *site, PyObject *module) {
    return GET(site, site, _class) == (PyObject *)Py_TYPE(module) ? hold(GET(site, site, _kind))
                                                                  : PyObject_GetAttr(site, name_kind);
}

/* Twin of Site.attributes where nothing has changed. */
static PyObject *find_attributes(Lane *self, PyObject *site, PyObject *module) {
    PyObject *ids = GET(site, site, _ids), *values = GET(site, site, _values), *own = dictionary_of(module), *key, *value;
    if (!own || GET(site, site, _class) != (PyObject *)Py_TYPE(module) || !PyList_CheckExact(ids) ||
        !PyList_GET_SIZE(ids) || !PyList_CheckExact(values) || PyList_GET_SIZE(values) != PyDict_GET_SIZE(own))
        return PyObject_GetAttr(site, name_attributes);
    Py_ssize_t position = 0, index = 0;
    while (PyDict_Next(own, &position, &key, &value))
        if (index >= PyList_GET_SIZE(values) || PyList_GET_ITEM(values, index++) != value)
            return PyObject_GetAttr(site, name_attributes);
    return hold(GET(site, site, _attributes));
}

static PyObject *find_leafness(PyObject *site, PyObject *module) {
    PyObject *children = own_entry(module, private_modules);
    if (children && PyDict_Check(children) && !PyDict_GET_SIZE(children)) return hold(Py_True);
    PyErr_Clear();
    return PyObject_GetAttr(site, name_is_leaf);
}

/* Hand over a call that has ended; twin of CallRecorder._close. */
static int close_call(Lane *self, PyObject *frame, PyObject *output) {
    PyObject *site = GET(frame, frame, site), *place = GET(frame, frame, place), *module = GET(frame, frame, module);
    Tray *tray = (Tray *)self->tray;
    int draws = GET(site, site, draws) != Py_False || !is_stock(module);
    PyObject *drawn = draws ? find_random(self) : hold(GET(frame, frame, random));
    PyObject *values = drawn ? PyTuple_New(21) : NULL, *rank = PyObject_GetAttrString(self->tape, "rank");
    if (!values || !rank) {
        Py_XDECREF(drawn);
        Py_XDECREF(values);
        Py_XDECREF(rank);
        return -1;
    }
    PyObject *items[] = {
        hold(PyTuple_GET_ITEM(place, 0)),       hold(PyTuple_GET_ITEM(place, 1)),
        rank,                                   hold(PyTuple_GET_ITEM(place, 2)),
        hold(PyTuple_GET_ITEM(place, 3)),       hold(PyTuple_GET_ITEM(place, 4)),
        find_kind(self, site, module),          hold(GET(frame, frame, identity)),
        hold(GET(frame, frame, parent)),        hold(GET(frame, frame, enter)),
        PyLong_FromLongLong(tray->order++),    find_leafness(site, module),
        hold(GET(frame, frame, training)),      hold(GET(frame, frame, grad_enabled)),
        hold(GET(frame, frame, arguments)),     hold(output),
        find_attributes(self, site, module),    hold(GET(frame, frame, autocast)),
        tell_modes(self, frame, drawn),         hold(GET(frame, frame, origin)),
        hold(self->empty_text),
    };
    for (Py_ssize_t index = 0; index < 21; ++index) PyTuple_SET_ITEM(values, index, items[index]);
    Py_DECREF(drawn);
    PyObject *call = PyErr_Occurred() ? NULL : ((PyTypeObject *)self->call_type)->tp_alloc((PyTypeObject *)self->call_type, 1);
    if (!call) {
        Py_DECREF(values);
        return -1;
    }
    PyTuple_SET_ITEM(call, 0, values);
    PyObject_GC_UnTrack(values); /* trees and texts: no cycles */
    PyObject_GC_UnTrack(call);
    int failed = lane_lock(self);
    if (!failed) {
        tray->num_calls++;
        failed = PyList_Append(tray->items, call);
        lane_unlock(self);
    }
    Py_DECREF(call);
    return failed ? -1 : 0;
}

/* Whether the innermost call is this module's, entered here, and ended without an exception: else the other path.
 * Calls inside of it whose end was not seen are closed first. */
static int ends_here(Lane *self, PyObject *frames, PyObject *module) {
    Py_ssize_t size = PyList_GET_SIZE(frames);
    if (size < 2) return 0;
    PyObject *frame = PyList_GET_ITEM(frames, size - 1);
    if (GET(frame, frame, module) != module) {
        PyObject *arguments[] = {self->calls, frames, module};
        int found = is_true(PyObject_VectorcallMethod(private_unwind, arguments, 3, NULL));
        if (found < 0) PyErr_Clear();
        size = PyList_GET_SIZE(frames);
        if (found <= 0 || size < 2) return 0;
        frame = PyList_GET_ITEM(frames, size - 1);
    }
    if (Py_TYPE(GET(frame, frame, targets)) != &TargetsType) return 0;
    PyObject *raised = handled_exception();
    Py_XDECREF(raised);
    return !raised || raised == GET(frame, frame, raised_before);
}

static int leave_call(Lane *self, PyObject *frames, PyObject *output) {
    Py_ssize_t size = PyList_GET_SIZE(frames);
    PyObject *frame = hold(PyList_GET_ITEM(frames, size - 1)), *above = hold(PyList_GET_ITEM(frames, size - 2));
    PyObject *flat = NULL, *leaves = NULL;
    int failed = PyList_SetSlice(frames, size - 1, size, NULL);
    if (!failed) flat = flatten_output(self, output);
    if (flat) leaves = list_leaves(flat);
    failed = !leaves;
    if (!failed && GET(site, GET(frame, frame, site), wanted) == Py_True)
        failed = take_outputs(self, frame, above, leaves);
    failed = failed || close_call(self, frame, PyTuple_GET_ITEM(flat, 0));
    Py_XDECREF(leaves);
    Py_XDECREF(flat);
    Py_DECREF(frame);
    Py_DECREF(above);
    return failed ? -1 : 0;
}

/* (module, scope, args, kwargs, output); returns what Recorder._leave would. */
static PyObject *lane_leave(Lane *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 5) return PyErr_Format(PyExc_TypeError, "leave takes 5 arguments, not %zd", count);
    int common = is_common(self, args[0]);
    PyObject *frames = common > 0 ? find_frames(self) : NULL;
    PyErr_Clear();
    if (!frames || !ends_here(self, frames, args[0])) return PyObject_Vectorcall(self->leave, args, 5, NULL);
    if (leave_call(self, frames, args[4])) excuse_call(self, "the outputs", args[1]);
    Py_RETURN_NONE;
}

#endif
