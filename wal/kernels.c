/* All kernels in one extension, `logweir.kernels`, whose modules `logweir/compiled.py` finds.

   Python takes one module from a shared library, by the function that the library has for its name.
   Here one library has those of all kernels: `setup.py` compiles each with a name of its own for
   that function, and writes those that could be compiled into `kernels.h`. */

#include <Python.h>
#include <string.h>

#define KERNEL(name, init) PyMODINIT_FUNC init(void);
#include "kernels.h"
#undef KERNEL

#define KERNEL(name, init) {name, init},
static const struct {
    const char *name;
    PyObject *(*init)(void);
} kernels[] = {
#include "kernels.h"
    {NULL, NULL},
};

/* A module of a specification; None where there is no kernel of that name. */
static PyObject *create(PyObject *self, PyObject *spec)
{
    PyObject *definition, *name = PyObject_GetAttrString(spec, "name");
    const char *wanted = name ? PyUnicode_AsUTF8(name) : NULL;
    int at = 0;

    (void)self;
    if (wanted == NULL) {
        Py_XDECREF(name);
        return NULL;
    }
    while (kernels[at].name && strcmp(kernels[at].name, wanted))
        at++;
    Py_DECREF(name);
    if (kernels[at].name == NULL)
        Py_RETURN_NONE;
    definition = kernels[at].init();  /* borrowed; Cython's modules are made in two steps */
    return definition ? PyModule_FromDefAndSpec((PyModuleDef *)definition, spec) : NULL;
}

/* Run the body of a module that `create` made. */
static PyObject *execute(PyObject *self, PyObject *module)
{
    PyModuleDef *definition = PyModule_GetDef(module);

    (void)self;
    if (definition == NULL || PyModule_ExecDef(module, definition))
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"create", create, METH_O, NULL},
    {"execute", execute, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

/* The kernels that were compiled, as `names`. */
static int fill(PyObject *module)
{
    PyObject *name, *names = PyFrozenSet_New(NULL);
    int at;

    for (at = 0; names && kernels[at].name; at++) {
        name = PyUnicode_FromString(kernels[at].name);
        if (name == NULL || PySet_Add(names, name))
            Py_CLEAR(names);
        Py_XDECREF(name);
    }
    at = names ? PyModule_AddObjectRef(module, "names", names) : -1;
    Py_XDECREF(names);
    return at;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, fill}, {0, NULL}};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "kernels", NULL, 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_kernels(void)
{
    return PyModuleDef_Init(&definition);
}
