/* Syncs by the kernel: what KernelSyncs of ledger/flushing.py asks of it, without ctypes. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <linux/aio_abi.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MOST = 8 };

/* submit(context, done, fd, mark): begin to sync a file; the eventfd `done` counts on at its end. Raises OSError: nothing
 * was begun. */
static PyObject *submit(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count != 4) {
        PyErr_SetString(PyExc_TypeError, "submit(context, done, fd, mark)");
        return NULL;
    }
    unsigned long long context = PyLong_AsUnsignedLongLong(args[0]);
    long done = PyErr_Occurred() ? -1 : PyLong_AsLong(args[1]), fd = PyErr_Occurred() ? -1 : PyLong_AsLong(args[2]);
    unsigned long long mark = PyErr_Occurred() ? 0 : PyLong_AsUnsignedLongLong(args[3]);
    if (PyErr_Occurred())
        return NULL;
    if (fd < 0 || fd > INT32_MAX || done < 0 || done > INT32_MAX) {
        errno = EBADF;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    struct iocb request, *requests[1] = {&request};
    memset(&request, 0, sizeof request);
    request.aio_data = mark;
    request.aio_lio_opcode = IOCB_CMD_FDSYNC;
    request.aio_fildes = (uint32_t)fd;
    request.aio_flags = IOCB_FLAG_RESFD;
    request.aio_resfd = (uint32_t)done;
    /* The lock is kept: the call returns at once, and a worker of the kernel does the rest. */
    long begun = syscall(SYS_io_submit, (aio_context_t)context, 1L, requests);
    if (begun == 1)
        Py_RETURN_NONE;
    if (begun == 0)
        errno = EAGAIN;
    return PyErr_SetFromErrno(PyExc_OSError);
}

/* landed(context) -> [(mark, 0 or an errno), ...]: what ended since the last call. */
static PyObject *landed(PyObject *module, PyObject *context)
{
    (void)module;
    unsigned long long which = PyLong_AsUnsignedLongLong(context);
    if (PyErr_Occurred())
        return NULL;
    struct io_event events[MOST];
    long count = syscall(SYS_io_getevents, (aio_context_t)which, 0L, (long)MOST, events, NULL);
    PyObject *found = PyList_New(0);
    for (long i = 0; found != NULL && i < count; i++) {
        PyObject *one = Py_BuildValue("KL", (unsigned long long)events[i].data, -(long long)events[i].res);
        if (one == NULL || PyList_Append(found, one) < 0)
            Py_CLEAR(found);
        Py_XDECREF(one);
    }
    return found;
}

static PyMethodDef functions[] = {{"submit", (PyCFunction)(void (*)(void))submit, METH_FASTCALL, NULL},
                                  {"landed", landed, METH_O, NULL},
                                  {NULL, NULL, 0, NULL}};
static int fill(PyObject *module) { return PyModule_AddStringConstant(module, "STAMP", STAMP); }
static struct PyModuleDef_Slot slots[] = {{Py_mod_exec, fill}, {0, NULL}};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_credgate_aio", NULL, 0, functions, slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__credgate_aio(void) { return PyModuleDef_Init(&definition); }
