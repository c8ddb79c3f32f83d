/* What the parts of the compiled path share: references, slots of Python classes, the session's objects. */
#ifndef PA_BASE_H
#define PA_BASE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>

/* A new reference to what is held already. */
static inline PyObject *hold(PyObject *object) {
    Py_XINCREF(object);
    return object;
}

static inline void put(PyObject **room, PyObject *stolen) {
    PyObject *before = *room;
    *room = stolen;
    Py_XDECREF(before);
}

/* Names of attributes and methods. */
#define NAMES(X)                                                                                                       \
    X(address) X(array) X(attributes) X(data_ptr) X(dtype) X(excuse) X(find) X(find_shelf) X(frames) X(grad)           \
    X(gradient) X(grad_fn) X(is_conj) X(is_cpu) X(is_leaf) X(is_neg) X(is_nested) X(kind) X(layout)                    \
    X(named_parameters) X(nbytes) X(next_functions) X(output_nr) X(overwrites) X(register_hook) X(register_prehook)    \
    X(requires_grad) X(same_as) X(shape) X(stride) X(training) X(untyped_storage) X(variable) X(also) X(shared)        \
    X(inside) X(cast) X(take_share) X(note_late)
#define PRIVATE_NAMES(X)                                                                                               \
    X(find_site) X(unwind) X(relate) X(take_buffers) X(take_changed_buffers) X(append) X(describe_modes) X(hand_on)    \
    X(cdata) X(modules) X(parameters) X(buffers) X(forward_hooks) X(forward_pre_hooks) X(sequence_nr) X(version)       \
    X(initialized)

#define DECLARE(name) static PyObject *name_##name;
NAMES(DECLARE)
#define DECLARE_PRIVATE(name) static PyObject *private_##name;
PRIVATE_NAMES(DECLARE_PRIVATE)
static PyObject *name_module, *replica_mark, *torch_npu;

static int intern_names(void) {
#define INTERN(name)                                                                                                   \
    if (!(name_##name = PyUnicode_InternFromString(#name))) return -1;
    NAMES(INTERN)
#define INTERN_PRIVATE(name)                                                                                           \
    if (!(private_##name = PyUnicode_InternFromString("_" #name))) return -1;
    PRIVATE_NAMES(INTERN_PRIVATE)
    name_module = PyUnicode_InternFromString("__module__");
    replica_mark = PyUnicode_InternFromString("_is_replica");
    torch_npu = PyUnicode_InternFromString("torch_npu");
    return name_module && replica_mark && torch_npu ? 0 : -1;
}

/* A slot of a Python class with __slots__: its place in the object. */
static Py_ssize_t find_slot(PyObject *type, const char *name) {
    PyObject *member = PyObject_GetAttrString(type, name);
    if (!member) return -1;
    Py_ssize_t offset = -1;
    if (Py_TYPE(member) == &PyMemberDescr_Type)
        offset = ((PyMemberDescrObject *)member)->d_member->offset;
    else
        PyErr_Format(PyExc_TypeError, "%R has no slot %s", type, name);
    Py_DECREF(member);
    return offset;
}

#define SLOT(object, offset) (*(PyObject **)((char *)(object) + (offset)))

/* An object of a Python class with __slots__, all empty: whoever asks for it fills them in. */
static inline PyObject *allocate(PyObject *type) { return ((PyTypeObject *)type)->tp_alloc((PyTypeObject *)type, 0); }

/* The same for what cannot be part of a cycle: the collector need not look at it. Records outlive several collections. */
static inline PyObject *allocate_plain(PyObject *type) {
    PyObject *object = allocate(type);
    if (object) PyObject_GC_UnTrack(object);
    return object;
}

static inline int is_true(PyObject *stolen) {
    if (!stolen) return -1;
    int answer = stolen == Py_True ? 1 : stolen == Py_False ? 0 : PyObject_IsTrue(stolen);
    Py_DECREF(stolen);
    return answer;
}

static inline int attribute_is_true(PyObject *object, PyObject *name) {
    return is_true(PyObject_GetAttr(object, name));
}

static inline long long to_number(PyObject *stolen) {
    if (!stolen) return -1;
    long long number = PyLong_AsLongLong(stolen);
    Py_DECREF(stolen);
    return number;
}

#define call_method PyObject_CallMethodNoArgs

static inline PyObject *call_nothing(PyObject *function) { return PyObject_Vectorcall(function, NULL, 0, NULL); }

/* Both return a new reference, or NULL without an exception where the object is gone. */
static PyObject *dereference(PyObject *reference) {
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *object = NULL;
    if (PyWeakref_GetRef(reference, &object) < 0) PyErr_Clear();
    return object;
#else
    PyObject *object = PyWeakref_GetObject(reference);
    return object && object != Py_None ? hold(object) : NULL;
#endif
}

static PyObject *handled_exception(void) {
#if PY_VERSION_HEX >= 0x030B0000
    return PyErr_GetHandledException();
#else
    PyObject *type, *value, *trace;
    PyErr_GetExcInfo(&type, &value, &trace);
    Py_XDECREF(type);
    Py_XDECREF(trace);
    if (value == Py_None) Py_CLEAR(value);
    return value;
#endif
}

/* The dictionary of an instance, borrowed (the object holds it); NULL without an exception where there is none. */
static inline PyObject *dictionary_of(PyObject *object) {
    PyObject *found = PyObject_GenericGetDict(object, NULL);
    if (!found) PyErr_Clear();
    Py_XDECREF(found);
    return found;
}

/* What an entry of an instance's own dictionary is, borrowed, or NULL. */
static inline PyObject *own_entry(PyObject *object, PyObject *name) {
    PyObject *entries = dictionary_of(object);
    return entries ? PyDict_GetItemWithError(entries, name) : NULL;
}

#endif
