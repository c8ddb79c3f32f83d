/* The twin of recording/consumers.py and of the hooks of recording/gradients.py. */
#ifndef PA_GRAPH_H
#define PA_GRAPH_H

#include "records.h"

/* Where gradients enter a call: an input or a parameter of it. ``node``: NULL for a leaf, whose address is ``id``. */
typedef struct {
    void *id;
    long long number; /* of the node's output */
    PyObject *node, *path, *dtype, *also;
    Py_ssize_t num_edges;
} Target;

typedef struct {
    PyObject_HEAD
    Target *items;
    Py_ssize_t count, room;
    long long boundary; /* nodes numbered below it were made before the call */
} Targets;

static PyTypeObject TargetsType;

static void targets_dealloc(Targets *self) {
    for (Py_ssize_t index = 0; index < self->count; ++index) {
        Py_XDECREF(self->items[index].node);
        Py_XDECREF(self->items[index].path);
        Py_XDECREF(self->items[index].dtype);
        Py_XDECREF(self->items[index].also);
    }
    PyMem_Free(self->items);
    Py_TYPE(self)->tp_free(self);
}

static PyTypeObject TargetsType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "precision_align.native.Targets",
    .tp_basicsize = sizeof(Targets),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = (destructor)targets_dealloc,
};

static Target *find_target(Targets *self, const void *id, long long number, int is_leaf) {
    for (Py_ssize_t index = 0; index < self->count; ++index) {
        Target *item = &self->items[index];
        if (item->id == id && item->number == number && is_leaf == !item->node) return item;
    }
    return NULL;
}

/* One more; ``node``, ``path`` and ``dtype`` (may be NULL) are held. */
static Target *append_target(Targets *self, void *id, long long number, PyObject *node, PyObject *path,
                             PyObject *dtype) {
    if (self->count == self->room) {
        Py_ssize_t room = self->room ? 2 * self->room : 4;
        Target *items = PyMem_Realloc(self->items, room * sizeof(Target));
        if (!items) {
            PyErr_NoMemory();
            return NULL;
        }
        self->items = items;
        self->room = room;
    }
    Target *item = &self->items[self->count++];
    *item = (Target){id, number, hold(node), hold(path), hold(dtype), NULL, 0};
    return item;
}

/* The node and the number of the output that made a tensor; *node is NULL for a leaf. */
static int find_origin(PyObject *tensor, PyObject **node, long long *number) {
    *number = 0;
    if (!(*node = PyObject_GetAttr(tensor, name_grad_fn))) return -1;
    if (*node == Py_None) {
        Py_CLEAR(*node);
        return 0;
    }
    *number = to_number(PyObject_GetAttr(tensor, name_output_nr));
    if (*number != -1 || !PyErr_Occurred()) return 0;
    Py_CLEAR(*node);
    return -1;
}

/* An input or parameter of the call; those without gradient do not count, nor does the same tensor again. */
static int add_target(Targets *self, PyObject *path, PyObject *tensor) {
    int wanted = attribute_is_true(tensor, name_requires_grad), failed = 0;
    if (wanted <= 0) return wanted;
    PyObject *node;
    long long number;
    if (find_origin(tensor, &node, &number)) return -1;
    void *id = node ? (void *)node : (void *)tensor;
    Target *known = find_target(self, id, number, !node);
    if (!known) {
        PyObject *dtype = PyObject_GetAttr(tensor, name_dtype);
        failed = !dtype || !append_target(self, id, number, node, path, dtype);
        Py_XDECREF(dtype);
    } else if (known->path != path && PyObject_RichCompareBool(known->path, path, Py_NE)) {
        if (!known->also) known->also = PyList_New(0);
        failed = !known->also || PyList_Append(known->also, path);
    }
    Py_XDECREF(node);
    return failed ? -1 : 0;
}

static inline long long sequence_of(PyObject *node) { return to_number(call_method(node, private_sequence_nr)); }

/* A node made inside the call and which of its gradients goes to which target; the node is held by the walk. */
typedef struct {
    PyObject *node;
    Py_ssize_t index, target;
} Edge;

typedef struct {
    PyObject *seen, *stack; /* a set and a list of nodes */
    Edge *edges;
    Py_ssize_t count, room;
} Walk;

static void end_walk(Walk *walk) {
    Py_CLEAR(walk->seen);
    Py_CLEAR(walk->stack);
    PyMem_Free(walk->edges);
    walk->edges = NULL;
}

static int add_edge(Walk *walk, PyObject *node, Py_ssize_t index, Py_ssize_t target) {
    if (walk->count == walk->room) {
        Py_ssize_t room = walk->room ? 2 * walk->room : 8;
        Edge *edges = PyMem_Realloc(walk->edges, room * sizeof(Edge));
        if (!edges) {
            PyErr_NoMemory();
            return -1;
        }
        walk->edges = edges;
        walk->room = room;
    }
    walk->edges[walk->count++] = (Edge){node, index, target};
    return 0;
}

/* Whether a node's type has this name; no Function of a user's can have one of those asked for. */
static int is_called(PyObject *node, const char *wanted) {
    const char *name = Py_TYPE(node)->tp_name, *dot = strrchr(name, '.');
    return !strcmp(dot ? dot + 1 : name, wanted);
}

#define IS_LEAF(node) is_called(node, "AccumulateGrad")

enum { ELSEWHERE = -1, INSIDE = -2, FAILED = -3 };

static Py_ssize_t find_leaf(Targets *targets, PyObject *node) {
    PyObject *variable = PyObject_GetAttr(node, name_variable);
    if (!variable) return FAILED;
    Target *known = find_target(targets, variable, 0, 1);
    Py_DECREF(variable);
    return known ? known - targets->items : ELSEWHERE;
}

/* Which target lies behind an edge: its index, ELSEWHERE for another leaf or nothing, INSIDE for a further node.
 * Autocast casts a parameter once and shares the cast: what a call sends to the cast is its share. */
static Py_ssize_t find_below(Targets *targets, PyObject *below, long long number) {
    if (below == Py_None) return ELSEWHERE;
    Target *known = find_target(targets, below, number, 0);
    if (known) return known - targets->items;
    if (IS_LEAF(below)) return find_leaf(targets, below);
    if (!is_called(below, "ToCopyBackward0")) return INSIDE;
    PyObject *next = PyObject_GetAttr(below, name_next_functions);
    if (!next) return FAILED;
    PyObject *leaf = PyTuple_GET_SIZE(next) ? PyTuple_GET_ITEM(PyTuple_GET_ITEM(next, 0), 0) : Py_None;
    Py_ssize_t found = leaf != Py_None && IS_LEAF(leaf) ? find_leaf(targets, leaf) : INSIDE;
    Py_DECREF(next);
    return found == ELSEWHERE ? INSIDE : found;
}

static int walk_node(Walk *walk, Targets *targets, PyObject *node) {
    PyObject *next = PyObject_GetAttr(node, name_next_functions);
    if (!next) return -1;
    for (Py_ssize_t index = 0; index < PyTuple_GET_SIZE(next); ++index) {
        PyObject *edge = PyTuple_GET_ITEM(next, index), *below = PyTuple_GET_ITEM(edge, 0);
        Py_ssize_t target = find_below(targets, below, PyLong_AsLongLong(PyTuple_GET_ITEM(edge, 1)));
        if (target == ELSEWHERE) continue;
        if (target == FAILED || (target == INSIDE && PyList_Append(walk->stack, below)) ||
            (target >= 0 && add_edge(walk, node, index, target))) {
            Py_DECREF(next);
            return -1;
        }
    }
    Py_DECREF(next);
    return 0;
}

static int is_target_node(Targets *targets, PyObject *node) {
    for (Py_ssize_t index = 0; index < targets->count; ++index)
        if (targets->items[index].node == node) return 1;
    return 0;
}

/* Walk from the outputs' nodes back to what was made before the call. ``beyond``: also from targets' own nodes on. */
static int find_consumers(Walk *walk, PyObject **roots, Py_ssize_t count, Targets *targets, int beyond) {
    *walk = (Walk){PySet_New(NULL), PyList_New(0), NULL, 0, 0};
    if (!walk->seen || !walk->stack) return -1;
    for (Py_ssize_t index = 0; targets->count && index < count; ++index)
        if (!IS_LEAF(roots[index]) && PyList_Append(walk->stack, roots[index])) return -1;
    for (Py_ssize_t size; (size = PyList_GET_SIZE(walk->stack));) {
        PyObject *node = hold(PyList_GET_ITEM(walk->stack, size - 1));
        int failed = PyList_SetSlice(walk->stack, size - 1, size, NULL);
        int known = failed ? -1 : PySet_Contains(walk->seen, node);
        if (!known && (beyond || !is_target_node(targets, node))) {
            failed = PySet_Add(walk->seen, node);
            long long number = failed ? -1 : sequence_of(node);
            if (!failed && !PyErr_Occurred() && number >= targets->boundary) failed = walk_node(walk, targets, node);
            failed = failed || PyErr_Occurred();
        }
        Py_DECREF(node);
        if (failed || known < 0) return -1;
    }
    for (Py_ssize_t index = 0; index < walk->count; ++index) targets->items[walk->edges[index].target].num_edges++;
    return 0;
}

#endif
