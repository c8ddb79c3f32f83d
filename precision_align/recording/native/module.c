/* The compiled path of recording: what happens before and after each module's call and at each autograd node.
 *
 * Everything here has a twin in Python (plain.py, trays.py, calls.py, gradients.py, consumers.py, sightings.py), which
 * runs where there is no compiler, and for all that is rare. Both make the same dump. One process may run both at once:
 * they work on the same frames, shelves and batches, under the same lock.
 *
 * Why: between two kernels of a model the interpreter's own code and data have left the caches, and each of its steps
 * costs several times what it costs in a loop.
 */
#include "following.h"

static int set_given(Lane *self, PyObject *kwargs) {
#define TAKE(name)                                                                                                     \
    {                                                                                                                  \
        PyObject *found = PyDict_GetItemString(kwargs, #name);                                                         \
        if (!found) {                                                                                                  \
            PyErr_SetString(PyExc_TypeError, "a Lane needs " #name);                                                   \
            return -1;                                                                                                 \
        }                                                                                                              \
        put(&self->name, hold(found));                                                                                 \
    }
    GIVEN(TAKE)
    return 0;
}

static int set_slots(Lane *self) {
#define LOOK(type, name)                                                                                               \
    if ((self->type##_at_##name = find_slot(self->type##_type, #name)) < 0) return -1;
    SLOTS(LOOK)
    return 0;
}

static int set_number(PyObject *kwargs, const char *name, Py_ssize_t *room) {
    PyObject *found = PyDict_GetItemString(kwargs, name);
    if (found) *room = PyLong_AsSsize_t(found);
    return found && !PyErr_Occurred() ? 0 : -1;
}

static int lane_init(Lane *self, PyObject *args, PyObject *kwargs) {
    Py_ssize_t tensors, gradients;
    PyObject *thread;
    if (!kwargs || set_given(self, kwargs) || set_slots(self)) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "a Lane takes keywords");
        return -1;
    }
    if (Py_TYPE(self->copier) != &CopierType || Py_TYPE(self->tray) != &TrayType) {
        PyErr_SetString(PyExc_TypeError, "a Lane works on a Copier and a Tray of its own module");
        return -1;
    }
    if (set_number(kwargs, "batch_bytes", &self->batch_bytes) || set_number(kwargs, "batch_items", &self->batch_items) ||
        set_number(kwargs, "with_tensors", &tensors) || set_number(kwargs, "with_gradients", &gradients)) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "a Lane needs its numbers");
        return -1;
    }
    if (!(thread = PyDict_GetItemString(kwargs, "main_thread"))) {
        PyErr_SetString(PyExc_TypeError, "a Lane needs main_thread");
        return -1;
    }
    self->thread = PyLong_AsUnsignedLong(thread);
    self->with_tensors = tensors != 0;
    self->with_gradients = gradients != 0;
    put(&self->empty_text, PyUnicode_FromString(""));
    put(&self->minus_one, PyLong_FromLong(-1));
    put(&self->libraries, PyDict_New());
    put(&self->input_paths, PyDict_New());
    put(&self->output_paths, PyDict_New());
    put(&self->parameter_paths, PyDict_New());
    return PyErr_Occurred() ? -1 : 0;
}

#define OWN(X)                                                                                                         \
    X(frames) X(state) X(random) X(dtype) X(modes) X(modes_seen) X(random_seen) X(modes_told) X(empty_text)            \
    X(minus_one) X(libraries) X(input_paths) X(output_paths) X(parameter_paths)

static int lane_traverse(Lane *self, visitproc visit, void *arg) {
#define VISIT(name) Py_VISIT(self->name);
    GIVEN(VISIT)
    OWN(VISIT)
    return 0;
}

static int lane_clear(Lane *self) {
#define CLEAR(name) Py_CLEAR(self->name);
    GIVEN(CLEAR)
    OWN(CLEAR)
    return 0;
}

static void lane_dealloc(Lane *self) {
    PyObject_GC_UnTrack(self);
    lane_clear(self);
    Py_TYPE(self)->tp_free(self);
}

/* A new step: the threads' running calls were dropped. */
static PyObject *lane_reset(Lane *self, PyObject *Py_UNUSED(ignored)) {
    Py_CLEAR(self->frames);
    Py_RETURN_NONE;
}

/* The accumulated gradient of a parameter, a new reference; twin of gradient_of. */
static PyObject *find_gradient(Lane *self, PyObject *parameter) {
    int leaf = attribute_is_true(parameter, name_is_leaf);
    PyObject *gradient = leaf > 0 ? PyObject_GetAttr(parameter, name_grad) : NULL;
    if (leaf < 0 || (leaf && gradient != Py_None)) return gradient;
    Py_XDECREF(gradient);
    return PyObject_CallOneArg(self->gradient_of, parameter);
}

/* (parameters, shelves, slots, step, micro): record the gradients that there are; twin of Tape.take_gradients. */
static PyObject *lane_take_gradients(Lane *self, PyObject *const *args, Py_ssize_t count) {
    for (Py_ssize_t index = 0; index < 3; ++index)
        if (count != 5 || !PyList_Check(args[index]) || PyList_GET_SIZE(args[index]) != PyList_GET_SIZE(args[0]))
            return PyErr_Format(PyExc_TypeError, "take_gradients takes (parameters, shelves, slots, step, micro)");
    for (Py_ssize_t index = 0; index < PyList_GET_SIZE(args[0]); ++index) {
        PyObject *gradient = find_gradient(self, PyList_GET_ITEM(args[0], index));
        int failed = !gradient || (gradient != Py_None && lane_take(self, PyList_GET_ITEM(args[1], index),
                                                                    PyList_GET_ITEM(args[2], index), args[3], args[4],
                                                                    gradient));
        Py_XDECREF(gradient);
        if (failed) return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef lane_methods[] = {
    {"follow_enter", (PyCFunction)(void (*)(void))lane_enter, METH_FASTCALL, NULL},
    {"follow_leave", (PyCFunction)(void (*)(void))lane_leave, METH_FASTCALL, NULL},
    {"take_gradients", (PyCFunction)(void (*)(void))lane_take_gradients, METH_FASTCALL, NULL},
    {"reset", (PyCFunction)lane_reset, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef lane_members[] = {
    {"generation", T_LONGLONG, offsetof(Lane, generation), 0, NULL},
    {"num_taken", T_LONGLONG, offsetof(Lane, num_taken), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject LaneType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "precision_align.native.Lane",
    .tp_basicsize = sizeof(Lane),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)lane_init,
    .tp_dealloc = (destructor)lane_dealloc,
    .tp_traverse = (traverseproc)lane_traverse,
    .tp_clear = (inquiry)lane_clear,
    .tp_methods = lane_methods,
    .tp_members = lane_members,
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "module", .m_size = -1};

static int add_type(PyObject *module, const char *name, PyTypeObject *type) {
    if (PyType_Ready(type)) return -1;
    Py_INCREF(type);
    return PyModule_AddObject(module, name, (PyObject *)type);
}

PyMODINIT_FUNC PyInit_module(void) {
    PyObject *module = PyModule_Create(&definition);
    if (!module || intern_names() || PyType_Ready(&TargetsType) || PyType_Ready(&NodeHookType) ||
        add_type(module, "Copier", &CopierType) || add_type(module, "Tray", &TrayType) ||
        add_type(module, "Lane", &LaneType)) {
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
