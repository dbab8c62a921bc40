/* Which files stand at some paths: what credgate/unchanged.py says, in one call for all of them. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>

enum { WORDS = 7, MOST = 8 };

static int facts_of(PyObject *path, int64_t words[WORDS])
{
    struct stat facts;
    PyObject *name; /* as os.fsencode has it: a path may be no UTF-8 */
    if (!PyUnicode_FSConverter(path, &name))
        return -1;
    int failed = lstat(PyBytes_AS_STRING(name), &facts);
    int why = errno;
    Py_DECREF(name);
    memset(words, 0, WORDS * sizeof *words); /* no file has mode 0 */
    if (failed) {
        errno = why;
        if (errno == ENOENT)
            return 0;
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    words[0] = (int64_t)facts.st_dev;
    words[1] = (int64_t)facts.st_ino;
    words[2] = (int64_t)facts.st_mode;
    words[3] = (int64_t)facts.st_uid;
    words[4] = (int64_t)facts.st_size;
    words[5] = (int64_t)facts.st_mtim.tv_sec * 1000000000 + facts.st_mtim.tv_nsec;
    words[6] = (int64_t)facts.st_ctim.tv_sec * 1000000000 + facts.st_ctim.tv_nsec;
    return 0;
}

/* identities(paths) -> bytes: of a tuple of texts. None of what is asked leaves the interpreter's lock: it is the file
 * system's own memory that answers, in a microsecond. */
static PyObject *identities(PyObject *module, PyObject *paths)
{
    (void)module;
    int64_t words[MOST][WORDS];
    if (!PyTuple_CheckExact(paths) || PyTuple_GET_SIZE(paths) > MOST) {
        PyErr_SetString(PyExc_TypeError, "identities(paths): a short tuple of texts");
        return NULL;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(paths);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *path = PyTuple_GET_ITEM(paths, i);
        if (!PyUnicode_CheckExact(path)) {
            PyErr_SetString(PyExc_TypeError, "identities(paths): a short tuple of texts");
            return NULL;
        }
        if (facts_of(path, words[i]) < 0)
            return NULL;
    }
    return PyBytes_FromStringAndSize((const char *)words, count * (Py_ssize_t)sizeof words[0]);
}

/* silent(events, mounts) -> bool: neither has an inotify instance an event, nor a table of mounts news, what
 * credgate/filewatch.py asks for each request. An error is no silence. */
static PyObject *silent(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "silent(events, mounts): two descriptors");
        return NULL;
    }
    long events = PyLong_AsLong(args[0]), mounts = PyLong_AsLong(args[1]);
    if ((events == -1 || mounts == -1) && PyErr_Occurred())
        return NULL;
    struct pollfd asked[2] = {{(int)events, POLLIN, 0}, {(int)mounts, POLLPRI, 0}};
    return PyBool_FromLong(events >= 0 && mounts >= 0 && poll(asked, 2, 0) == 0);
}

static PyMethodDef functions[] = {{"identities", identities, METH_O, NULL},
                                  {"silent", (PyCFunction)(void (*)(void))silent, METH_FASTCALL, NULL},
                                  {NULL, NULL, 0, NULL}};
static int fill(PyObject *module) { return PyModule_AddStringConstant(module, "STAMP", STAMP); }
static struct PyModuleDef_Slot slots[] = {{Py_mod_exec, fill}, {0, NULL}};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_credgate_look", NULL, 0, functions, slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__credgate_look(void) { return PyModuleDef_Init(&definition); }
