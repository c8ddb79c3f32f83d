/* The twin of recording/plain.py: copies of tensors that lie in the CPU's memory as they are to be stored. */
#ifndef PA_COPIES_H
#define PA_COPIES_H

#include "base.h"

/* Known forms: (Form or None, nbytes, whether it is complex). */
enum { FORM, FORM_BYTES, FORM_COMPLEX };

/* torch's functions for compiled code (AOTInductor's C interface), where they are there (torch 2.13 has them, 2.1 has not): they answer
 * what takes a dozen attributes of Python. A handle points to a tensor object, which is one pointer to its data. Each
 * returns 0, or prints an error: nested tensors, which have no sizes, must not come here. */
typedef const void *Handle;
typedef struct {
    int32_t (*data_ptr)(Handle, void **);
    int32_t (*sizes)(Handle, int64_t **);
    int32_t (*strides)(Handle, int64_t **);
    int32_t (*dim)(Handle, int64_t *);
    int32_t (*dtype)(Handle, int32_t *);
    int32_t (*device)(Handle, int32_t *);
    int32_t (*layout)(Handle, int32_t *);
    int32_t (*offset)(Handle, int64_t *);
    int32_t (*storage_size)(Handle, int64_t *);
} Shims;

/* What the shims say of a tensor; ``key``: what tells tensors of one form from others, of ``length`` numbers. */
enum { MOST_DIMS = 16, KEY_NUMBERS = 3 + 2 * MOST_DIMS };
typedef struct {
    void *pointer;
    int64_t offset, storage_size, key[KEY_NUMBERS];
    Py_ssize_t length;
} Looks;

typedef struct {
    PyObject_HEAD
    PyObject *slabs, *make_form, *staged_type, *strided, *is_transformed, *transforms, *nothing;
    Shims shims;
    int has_shims;
    PyObject *forms;     /* what tells tensors of one form from others -> what is known of it */
    PyObject *copies;    /* address that was copied -> its copy */
    PyObject *slab;      /* array that is being filled, or NULL */
    uintptr_t next, end; /* of the slab */
    Py_ssize_t held, max_held, max_copies, max_forms, slab_bytes, own_bytes, alignment, long_bytes;
    Py_ssize_t at_form, at_slab, at_address, at_words, at_parts, at_summary; /* slots of Staged */
} Copier;

static PyTypeObject CopierType;

static int copier_init(Copier *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"slabs", "make_form", "staged_type", "strided", "is_transformed",
                            "transforms", "shims", "max_held", "max_copies", "max_forms", "slab_bytes", "own_bytes", "alignment", "long_bytes",
                            NULL};
    PyObject *slabs, *make_form, *staged, *strided, *transformed, *transforms, *shims;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOOOO!nnnnnnn", names, &slabs, &make_form, &staged, &strided,
                                     &transformed, &transforms, &PyTuple_Type, &shims, &self->max_held, &self->max_copies, &self->max_forms,
                                     &self->slab_bytes, &self->own_bytes, &self->alignment, &self->long_bytes))
        return -1;
    if ((self->at_form = find_slot(staged, "form")) < 0 || (self->at_slab = find_slot(staged, "_slab")) < 0 ||
        (self->at_address = find_slot(staged, "address")) < 0 || (self->at_words = find_slot(staged, "_words")) < 0 ||
        (self->at_parts = find_slot(staged, "parts")) < 0 || (self->at_summary = find_slot(staged, "summary")) < 0)
        return -1;
    if ((self->has_shims = PyTuple_GET_SIZE(shims) == sizeof(Shims) / sizeof(void *)))
        for (Py_ssize_t index = 0; index < PyTuple_GET_SIZE(shims); ++index) {
            void *address = PyLong_AsVoidPtr(PyTuple_GET_ITEM(shims, index));
            if (!address) return -1;
            memcpy((char *)&self->shims + index * sizeof(void *), &address, sizeof(void *));
        }
    put(&self->slabs, hold(slabs));
    put(&self->make_form, hold(make_form));
    put(&self->staged_type, hold(staged));
    put(&self->strided, hold(strided));
    put(&self->is_transformed, hold(transformed));
    put(&self->transforms, hold(transforms));
    put(&self->nothing, PyTuple_New(0));
    put(&self->forms, PyDict_New());
    put(&self->copies, PyDict_New());
    return self->nothing && self->forms && self->copies ? 0 : -1;
}

static int copier_traverse(Copier *self, visitproc visit, void *arg) {
    Py_VISIT(self->slabs);
    Py_VISIT(self->make_form);
    Py_VISIT(self->forms);
    Py_VISIT(self->copies);
    return 0;
}

static int copier_clear(Copier *self) {
    Py_CLEAR(self->slabs);
    Py_CLEAR(self->make_form);
    Py_CLEAR(self->staged_type);
    Py_CLEAR(self->strided);
    Py_CLEAR(self->is_transformed);
    Py_CLEAR(self->transforms);
    Py_CLEAR(self->nothing);
    Py_CLEAR(self->forms);
    Py_CLEAR(self->copies);
    Py_CLEAR(self->slab);
    return 0;
}

static void copier_dealloc(Copier *self) {
    PyObject_GC_UnTrack(self);
    copier_clear(self);
    Py_TYPE(self)->tp_free(self);
}

/* Room for so many bytes; 0 with an exception. The array it lies in is self->slab. */
static uintptr_t copier_reserve(Copier *self, Py_ssize_t nbytes) {
    uintptr_t address = self->next;
    if (!self->slab || address + nbytes > self->end) {
        Py_CLEAR(self->slab); /* let go of the last one first: it may be free by now */
        self->next = self->end = 0;
        PyObject *size = PyLong_FromSsize_t(nbytes);
        PyObject *found = size ? PyObject_CallMethodOneArg(self->slabs, name_find, size) : NULL;
        Py_XDECREF(size);
        if (!found) return 0;
        PyObject *array = PyObject_GetAttr(found, name_array);
        long long start = to_number(PyObject_GetAttr(found, name_address));
        Py_DECREF(found);
        if (!array || start == -1) {
            Py_XDECREF(array);
            return 0;
        }
        self->slab = array;
        address = (uintptr_t)start;
        self->end = address + (nbytes <= self->own_bytes ? self->slab_bytes : 0);
    }
    self->next = (address + nbytes + self->alignment - 1) & -(uintptr_t)self->alignment;
    return address;
}

/* A Staged of bytes in a slab. */
static PyObject *make_staged(Copier *self, PyObject *form, PyObject *slab, PyObject *address) {
    PyObject *staged = allocate_plain(self->staged_type);
    if (!staged) return NULL;
    SLOT(staged, self->at_form) = hold(form);
    SLOT(staged, self->at_slab) = hold(slab);
    SLOT(staged, self->at_address) = hold(address);
    SLOT(staged, self->at_words) = hold(Py_None);
    SLOT(staged, self->at_parts) = hold(self->nothing);
    SLOT(staged, self->at_summary) = hold(Py_None);
    return staged;
}

static Py_ssize_t bytes_of(Copier *self, PyObject *staged) {
    return (Py_ssize_t)to_number(PyObject_GetAttr(SLOT(staged, self->at_form), name_nbytes));
}

/* What is known of the form of a tensor, borrowed; NULL with an exception. */
static PyObject *find_form(Copier *self, PyObject *tensor) {
    PyObject *looks = PyTuple_New(4), *known = NULL;
    if (!looks) return NULL;
    PyTuple_SET_ITEM(looks, 0, PyObject_GetAttr(tensor, name_dtype));
    PyTuple_SET_ITEM(looks, 1, PyObject_GetAttr(tensor, name_shape));
    PyTuple_SET_ITEM(looks, 2, call_method(tensor, name_stride));
    PyTuple_SET_ITEM(looks, 3, PyObject_GetAttr(tensor, name_requires_grad));
    for (int index = 0; index < 4; ++index)
        if (!PyTuple_GET_ITEM(looks, index)) goto done;
    known = PyDict_GetItemWithError(self->forms, looks);
    if (known || PyErr_Occurred()) goto done;
    if (PyDict_GET_SIZE(self->forms) >= self->max_forms - 1) PyDict_Clear(self->forms); /* two keys a form */
    PyObject *made = PyObject_CallOneArg(self->make_form, tensor);
    if (!made) goto done;
    if (PyDict_SetItem(self->forms, looks, made) == 0) known = made; /* the dictionary holds it */
    Py_DECREF(made);
done:
    Py_DECREF(looks);
    return known;
}

/* Whether a tensor's kind is one whose memory may be looked at; -1 with an exception. */
static int is_plain(Copier *self, PyObject *tensor) {
    PyObject *layout;
    int answer = attribute_is_true(tensor, name_is_cpu);
    if (answer <= 0) return answer;
    if (!(layout = PyObject_GetAttr(tensor, name_layout))) return -1;
    Py_DECREF(layout); /* layouts live as long as torch */
    if (layout != self->strided) return 0;
    if ((answer = attribute_is_true(tensor, name_is_nested))) return answer < 0 ? -1 : 0;
    if ((answer = is_true(call_method(tensor, name_is_neg)))) return answer < 0 ? -1 : 0;
    if ((answer = is_true(PyObject_CallOneArg(self->is_transformed, tensor)))) return answer < 0 ? -1 : 0;
    return 1;
}

/* Whether nbytes from an address on are in the tensor's storage: not freed (FSDP) or made smaller; -1: exception. */
static int is_there(PyObject *tensor, uintptr_t pointer, Py_ssize_t nbytes) {
    PyObject *storage = call_method(tensor, name_untyped_storage);
    if (!storage) return -1;
    long long base = to_number(call_method(storage, name_data_ptr)), size = to_number(call_method(storage, name_nbytes));
    Py_DECREF(storage);
    if (PyErr_Occurred()) return -1;
    return base && pointer + nbytes <= (uintptr_t)base + (uintptr_t)size;
}

static int let_go(Copier *self) {
    while (self->held > self->max_held || PyDict_GET_SIZE(self->copies) > self->max_copies) {
        Py_ssize_t position = 0;
        PyObject *oldest, *staged;
        if (!PyDict_Next(self->copies, &position, &oldest, &staged)) break;
        self->held -= bytes_of(self, staged);
        Py_INCREF(oldest);
        int failed = PyDict_DelItem(self->copies, oldest);
        Py_DECREF(oldest);
        if (failed) return -1;
    }
    return 0;
}

/* The copy that was made from this address, where it still holds the same bits; a new reference, NULL for none. */
static PyObject *find_copy(Copier *self, PyObject *from, uintptr_t pointer, PyObject *form, Py_ssize_t nbytes) {
    PyObject *known = PyDict_GetItemWithError(self->copies, from);
    if (!known) return NULL;
    Py_ssize_t size = bytes_of(self, known);
    PyObject *address = SLOT(known, self->at_address);
    const void *copied = PyLong_AsVoidPtr(address);
    if (size == nbytes && !memcmp(copied, (const void *)pointer, nbytes))
        return SLOT(known, self->at_form) == form ? hold(known)
                                                  : make_staged(self, form, SLOT(known, self->at_slab), address);
    self->held -= size;
    return NULL;
}

static PyObject *copy_anew(Copier *self, PyObject *from, uintptr_t pointer, PyObject *form, Py_ssize_t nbytes) {
    uintptr_t address = copier_reserve(self, nbytes);
    if (!address) return NULL;
    PyObject *slab = hold(self->slab); /* another thread may go on to the next while the lock is given up */
    if (nbytes < self->long_bytes) {
        memcpy((void *)address, (const void *)pointer, nbytes);
    } else {
        Py_BEGIN_ALLOW_THREADS
        memcpy((void *)address, (const void *)pointer, nbytes);
        Py_END_ALLOW_THREADS
    }
    PyObject *number = PyLong_FromVoidPtr((void *)address);
    PyObject *staged = number ? make_staged(self, form, slab, number) : NULL;
    Py_XDECREF(number);
    Py_DECREF(slab);
    if (!staged || PyDict_SetItem(self->copies, from, staged)) {
        Py_XDECREF(staged);
        return NULL;
    }
    self->held += nbytes;
    if (self->held > self->max_held || PyDict_GET_SIZE(self->copies) > self->max_copies)
        if (let_go(self)) Py_CLEAR(staged);
    return staged;
}

static PyObject *find_or_copy(Copier *self, PyObject *from, uintptr_t pointer, PyObject *form, Py_ssize_t nbytes) {
    PyObject *staged = find_copy(self, from, pointer, form, nbytes);
    return staged || PyErr_Occurred() ? staged : copy_anew(self, from, pointer, form, nbytes);
}

/* The other way to a copy: by attributes. None for what is not plain. */
static PyObject *copy_by_attributes(Copier *self, PyObject *tensor) {
    int answer = is_plain(self, tensor);
    if (answer <= 0) return answer < 0 ? NULL : hold(Py_None);
    PyObject *known = find_form(self, tensor);
    if (!known) return NULL;
    PyObject *form = PyTuple_GET_ITEM(known, FORM), *staged = NULL, *from;
    Py_ssize_t nbytes = PyLong_AsSsize_t(PyTuple_GET_ITEM(known, FORM_BYTES));
    if (form == Py_None) return hold(Py_None);
    if (PyTuple_GET_ITEM(known, FORM_COMPLEX) == Py_True && (answer = is_true(call_method(tensor, name_is_conj))))
        return answer < 0 ? NULL : hold(Py_None);
    if (!(from = call_method(tensor, name_data_ptr))) return NULL;
    Py_INCREF(form);
    uintptr_t pointer = (uintptr_t)PyLong_AsVoidPtr(from);
    if ((answer = is_there(tensor, pointer, nbytes)) == 0) staged = hold(Py_None);
    if (answer > 0) staged = find_or_copy(self, from, pointer, form, nbytes);
    Py_DECREF(form);
    Py_DECREF(from);
    return staged;
}

/* Ask the shims: 1, 0 where the tensor is not plain or they do not know, -1 with an exception. */
static int look(Copier *self, PyObject *tensor, Looks *looks) {
    const Shims *shims = &self->shims;
    PyObject *transform = call_nothing(self->transforms);
    Py_XDECREF(transform);
    if (transform != Py_None) return transform ? 0 : -1; /* tensors may be wrappers without memory */
    int answer = attribute_is_true(tensor, name_is_nested);
    if (answer) return answer < 0 ? -1 : 0;
    PyObject *address = PyObject_GetAttr(tensor, private_cdata);
    if (!address) return -1;
    void *data = PyLong_AsVoidPtr(address); /* the tensor's one pointer */
    Py_DECREF(address);
    int32_t device, layout, dtype;
    int64_t dim, *sizes, *strides;
    if (!data || shims->device(&data, &device) || device || shims->layout(&data, &layout) || layout ||
        shims->dim(&data, &dim) || dim > MOST_DIMS || shims->dtype(&data, &dtype) || shims->sizes(&data, &sizes) ||
        shims->strides(&data, &strides) || shims->offset(&data, &looks->offset) ||
        shims->storage_size(&data, &looks->storage_size) || !looks->storage_size ||
        shims->data_ptr(&data, &looks->pointer) || !looks->pointer)
        return 0;
    if ((answer = is_true(call_method(tensor, name_is_neg)))) return answer < 0 ? -1 : 0;
    if ((answer = attribute_is_true(tensor, name_requires_grad)) < 0) return -1;
    looks->length = 3 + 2 * dim;
    looks->key[0] = dtype;
    looks->key[1] = answer;
    looks->key[2] = dim;
    memcpy(looks->key + 3, sizes, dim * sizeof(int64_t));
    memcpy(looks->key + 3 + dim, strides, dim * sizeof(int64_t));
    return 1;
}

/* What is known of the form of a tensor by its looks, borrowed; NULL with an exception. */
static PyObject *find_looked_form(Copier *self, PyObject *tensor, const Looks *looks) {
    PyObject *key = PyBytes_FromStringAndSize((const char *)looks->key, looks->length * sizeof(int64_t));
    PyObject *known = key ? PyDict_GetItemWithError(self->forms, key) : NULL;
    if (key && !known && !PyErr_Occurred()) {
        known = find_form(self, tensor);
        if (known && PyDict_SetItem(self->forms, key, known)) known = NULL;
    }
    Py_XDECREF(key);
    return known;
}

/* A copy of a plain tensor; None for any other. The caller keeps other threads away from this object. */
static PyObject *copier_copy(Copier *self, PyObject *tensor) {
    Looks looks;
    int answer = self->has_shims ? look(self, tensor, &looks) : 0;
    if (answer <= 0) return answer < 0 ? NULL : copy_by_attributes(self, tensor);
    PyObject *known = find_looked_form(self, tensor, &looks);
    if (!known) return NULL;
    PyObject *form = PyTuple_GET_ITEM(known, FORM);
    Py_ssize_t nbytes = PyLong_AsSsize_t(PyTuple_GET_ITEM(known, FORM_BYTES));
    Py_ssize_t count = 1;
    for (Py_ssize_t index = 0; index < looks.key[2]; ++index) count *= looks.key[3 + index];
    if (form == Py_None || !count || looks.offset * (nbytes / count) + nbytes > looks.storage_size)
        return hold(Py_None); /* its storage was made smaller */
    if (PyTuple_GET_ITEM(known, FORM_COMPLEX) == Py_True && (answer = is_true(call_method(tensor, name_is_conj))))
        return answer < 0 ? NULL : hold(Py_None);
    PyObject *from = PyLong_FromVoidPtr(looks.pointer);
    if (!from) return NULL;
    Py_INCREF(form);
    PyObject *staged = find_or_copy(self, from, (uintptr_t)looks.pointer, form, nbytes);
    Py_DECREF(form);
    Py_DECREF(from);
    return staged;
}

static PyObject *copier_reserve_method(Copier *self, PyObject *size) {
    Py_ssize_t nbytes = PyLong_AsSsize_t(size);
    if (nbytes == -1 && PyErr_Occurred()) return NULL;
    uintptr_t address = copier_reserve(self, nbytes);
    if (!address) return NULL;
    return Py_BuildValue("(ON)", self->slab, PyLong_FromVoidPtr((void *)address));
}

static PyObject *copier_forget(Copier *self, PyObject *Py_UNUSED(ignored)) {
    PyDict_Clear(self->copies);
    self->held = 0;
    Py_RETURN_NONE;
}

static PyObject *copier_release(Copier *self, PyObject *Py_UNUSED(ignored)) {
    PyDict_Clear(self->copies);
    Py_CLEAR(self->slab);
    self->held = self->next = self->end = 0;
    Py_RETURN_NONE;
}

static PyMethodDef copier_methods[] = {
    {"copy", (PyCFunction)copier_copy, METH_O, NULL},
    {"reserve", (PyCFunction)copier_reserve_method, METH_O, NULL},
    {"forget", (PyCFunction)copier_forget, METH_NOARGS, NULL},
    {"release", (PyCFunction)copier_release, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef copier_members[] = {
    {"forms", T_OBJECT, offsetof(Copier, forms), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject CopierType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "precision_align.native.Copier",
    .tp_basicsize = sizeof(Copier),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)copier_init,
    .tp_dealloc = (destructor)copier_dealloc,
    .tp_traverse = (traverseproc)copier_traverse,
    .tp_clear = (inquiry)copier_clear,
    .tp_methods = copier_methods,
    .tp_members = copier_members,
};

#endif
